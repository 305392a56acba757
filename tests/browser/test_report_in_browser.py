"""The report in a real browser: read from a file with no network, clicked, filtered, hovered; many rows.

On Debian: apt-get install --no-install-recommends chromium chromium-driver
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from webdriver import CHROMIUM, DRIVER, Browser

import make_records
from ringmark.cli import main

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: apt-get install chromium chromium-driver"
)
PUBLISHED = Path(__file__).parent.parent.parent / "results" / "published"


# How long each of some filters and scrolls takes, to the finished layout, in ms.
STEPS = """
const list = document.getElementById('record-list'), input = document.getElementById('record-text');
const steps = [];
function timed(work) {
  const start = performance.now();
  work();
  list.clientHeight;
  steps.push(performance.now() - start);
}
for (const text of ['b', 'bu', 'burst', 'burst 4x8', '']) {
  timed(() => { input.value = text; input.dispatchEvent(new Event('input')); });
}
for (let i = 1; i <= 20; i++) {
  timed(() => { list.scrollTop = i * 12000; list.dispatchEvent(new Event('scroll')); });
}
return steps;
"""


def report_of(folder: Path, records) -> Path:
    make_records.write_campaign(folder, records)
    (folder.parent / "published").symlink_to(PUBLISHED)
    (folder / "preflight.json").write_text(json.dumps({"links": {"intra_gb_per_s": 380.25}}))
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    hostile = make_records.grid()
    found = next(r for r in hostile if r.status.value == "crashed")
    object.__setattr__(found.failure, "reason", "</script><script>window.harmed = 1</script><b>bold</b>")
    return report_of(tmp_path_factory.mktemp("r") / "made", hostile)


@pytest.fixture(params=["light", "dark"])
def browser(page, tmp_path, request):
    opened = Browser(tmp_path, dark=request.param == "dark")
    try:
        opened.open(page)
        yield opened
        assert opened.console() == []
        assert opened.run("return performance.getEntriesByType('resource').length") == 0
    finally:
        opened.close()


def test_a_reader_finds_a_way_through_all_of_it(browser, request):
    # Comparison: the figures of the table, the words, the hover, the key.
    assert "BurstAttention" in browser.texts("#comparison td:first-child")
    assert browser.texts("#comparison .best")  # of a rate, which has an interval
    for figure in ("fraction", "memory"):
        browser.choose("#choose-figure", figure)
        assert browser.texts("#comparison .best") == []
    browser.choose("#choose-figure", "tflops")
    browser.choose("#choose-phase", "fwd")
    words = browser.texts("#comparison .word")
    assert {"oom", "timeout", "wrong", "crashed", "unsupported", "unavailable"} <= set(words)
    assert not {"", "0", "-1", "NaN", "null", "undefined"} & set(browser.texts("#comparison td"))
    browser.hover("#plot .mark")
    assert "tokens" in browser.texts("#tip")[0]
    assert browser.run("return document.getElementById('tip').hidden") is False
    browser.click("#plot .key")
    assert browser.run("return document.querySelectorAll('#plot .off').length") > 0
    browser.type("#method-text", "usp")
    assert browser.texts("#comparison td:first-child") == ["USP (placement=head_first, ulysses=2)"]
    browser.choose("#choose-figure", "memory")
    assert "MiB" in browser.texts("#plot text")[0]

    # Records: filter, sort, one click to all of one.
    browser.click("#tab-records")
    browser.choose("#choose-status", "crashed")
    assert browser.texts("#record-count") == ["1 of 31 records."]
    browser.click(".item")
    detail = browser.texts("#record-detail")[0]
    assert "</script><script>window.harmed = 1</script>" in detail
    assert browser.run("return window.harmed === undefined") is True
    href = browser.run("return document.querySelector('#record-detail a').href")
    browser.choose("#choose-status", "")
    browser.click(".head button:nth-child(7)")
    shown = [float(t) for t in browser.texts(".item span:nth-child(7)") if t.replace(".", "").isdigit()]
    assert shown == sorted(shown)
    assert len(shown) > 10

    # The other parts.
    browser.click("#tab-measured")
    assert "380.25" in browser.texts("#measured")[0]
    browser.click("#tab-verdicts")
    assert "not_comparable" in browser.texts("#verdicts")[0]
    browser.click("#tab-audit")
    assert len(browser.texts("#audit tbody tr")) > 10
    browser.choose("#choose-certainty", "contradiction")
    assert set(browser.texts("#audit tbody td:first-child")) == {"contradiction"}

    # The theme follows the system, and the button turns it round.
    paper = "return getComputedStyle(document.body).backgroundColor"
    dark, before = "[dark]" in request.node.name, browser.run(paper)
    assert (before == "rgb(20, 23, 27)") is dark
    browser.click("#theme")
    assert browser.run(paper) != before

    # The link opens the record's own file.
    browser.call("POST", f"{browser.session}/url", {"url": href})
    assert '"status": "crashed"' in browser.run("return document.body.textContent")


def test_ten_thousand_records_scroll_and_filter_smoothly(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = report_of(tmp_path / "r" / "many", make_records.many(10_000))
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(made)
        browser.click("#tab-records")
        assert browser.texts("#record-count") == ["10000 of 10000 records."]
        assert browser.run("return document.querySelectorAll('.item').length") < 100
        slowest = max(browser.run(STEPS))
        print(f"slowest step {slowest:.0f} ms")
        assert slowest < 300  # a frame or few; the limit leaves room for a busy machine
        browser.run("document.getElementById('record-list').scrollTop = 1e9")
        last = "return Math.max(...[...document.querySelectorAll('.item')].map((e) => parseInt(e.style.top)))"
        for _ in range(50):
            if browser.run(last) == 9999 * 28:
                break
        assert browser.run(last) == 9999 * 28
        assert browser.console() == []
    finally:
        browser.close()
