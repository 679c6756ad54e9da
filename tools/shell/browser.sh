#!/bin/sh
# The browser suite wants a Chromium of the system's. Where this is root's own machine (a container, CI) it is installed
# by the package manager; elsewhere nothing is touched, and the suite says why it is skipped.
set -u
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
say() { echo "browser: $*" >&2; }
command -v apt-get >/dev/null 2>&1 || { say "no Chromium here, and no apt-get: the browser suite will be skipped"; exit 0; }
[ "$(id -u)" = 0 ] || { say "no Chromium here: 'sudo apt install chromium' lets the browser suite run"; exit 0; }
say "installing chromium"
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
    say "apt-get could not install chromium: the browser suite will be skipped"
exit 0
