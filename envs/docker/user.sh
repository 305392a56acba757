#!/bin/sh
# The image's user, and places that any user may write: `docker run --user "$(id -u):$(id -g)"` gives the
# container an id that /etc/passwd does not know, so its home and the mount point are open to all.
set -eu
groupadd --gid 10001 ringmark
useradd --uid 10001 --gid 10001 --create-home --home-dir /home/ringmark ringmark
mkdir -p /results
chmod 1777 /home/ringmark /results
