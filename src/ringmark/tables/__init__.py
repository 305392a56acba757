"""From records to what is shown: collect, render, plot. No torch here: it runs on a laptop."""
