"""The page's style: light and dark as the reader's system has it, and a printout."""

from __future__ import annotations

# Verdicts differ in word, sign and colour; the hues (Okabe and Ito's blue, orange, vermilion) are told apart by the
# colour-blind too.
CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --raised: #f5f6f8; --line: #dfe2e8; --text: #1c2230; --muted: #5c6475; --link: #0a5ea8;
  --equal: #00598f; --equal-back: #e0eff9; --explained: #8a5300; --explained-back: #fdf0d5;
  --different: #b13a00; --different-back: #fde5da; --share-back: rgba(86, 180, 233, 0.32);
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171d; --raised: #1d2129; --line: #333a46; --text: #e4e7ed; --muted: #9ba4b5; --link: #7dbff2;
    --equal: #86c8f4; --equal-back: #14334a; --explained: #f3bd5e; --explained-back: #3d2e10;
    --different: #ff9a6b; --different-back: #4a2010; --share-back: rgba(86, 180, 233, 0.28);
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1rem; }
body {
  margin: 0 auto; max-width: 88rem; padding: 2.5rem 1.5rem 5rem; background: var(--page); color: var(--text);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; min-width: 0; }
h1 { margin: 0 0 1.2rem; font-size: 2.1rem; line-height: 1.2; letter-spacing: -0.02em; text-wrap: balance; }
h2 {
  margin: 2.4rem 0 0.9rem; padding-top: 1.3rem; border-top: 1px solid var(--line); font-size: 1.3rem; line-height: 1.3;
  letter-spacing: -0.01em;
}
h1 + h2 { margin-top: 0; }
p { margin: 0.7rem 0; max-width: 46rem; text-wrap: pretty; }
a { color: var(--link); }
code { font: 0.9em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
:not(pre) > code { padding: 0.1em 0.35em; border-radius: 4px; background: var(--raised); overflow-wrap: anywhere; }
pre {
  margin: 1rem 0; padding: 0.8rem 1rem; border: 1px solid var(--line); border-radius: 8px; background: var(--raised);
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.flag { white-space: nowrap; }
nav { font-size: 0.9rem; }
nav ol { margin: 0 0 2rem; padding: 0; list-style: none; }
nav a { display: block; padding: 0.22rem 0; color: var(--muted); text-decoration: none; }
nav a:hover, nav a:focus-visible { color: var(--link); text-decoration: underline; }
@media (min-width: 78rem) {
  body { display: grid; grid-template-columns: 14rem minmax(0, 60rem); gap: 4rem; justify-content: center; }
  main { margin: 0; }
  nav { position: sticky; top: 2.5rem; align-self: start; max-height: calc(100vh - 5rem); overflow-y: auto; }
}
@media (max-width: 77.99rem) {
  nav ol { display: flex; flex-wrap: wrap; gap: 0 1.4rem; max-width: 60rem; margin: 0 auto 2rem; }
}
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.35rem 1.5rem; margin: 1rem 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
.tally { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0.8rem; margin: 1rem 0 0.8rem; padding: 0; }
.tally li { padding: 0.8rem 1.1rem; border-radius: 10px; list-style: none; line-height: 1.3; }
.tally strong { display: block; font-size: 2rem; line-height: 1.15; font-variant-numeric: tabular-nums; }
.tally li.none { background: var(--raised); color: var(--muted); }
.bar { display: flex; gap: 3px; height: 6px; margin-bottom: 1.2rem; }
.bar span { border-radius: 3px; background: currentColor; }
.equal { color: var(--equal); } .explained { color: var(--explained); } .different { color: var(--different); }
.tally .equal, td .equal { background: var(--equal-back); }
.tally .explained, td .explained { background: var(--explained-back); }
.tally .different, td .different { background: var(--different-back); }
td.verdict span {
  display: inline-block; padding: 0.05em 0.6em; border-radius: 1em; font-size: 0.88em; font-weight: 600;
  white-space: nowrap;
}
td .equal::before { content: "= "; }
td .explained::before { content: "∴ "; }
td .different::before { content: "≠ "; }
figure { margin: 1.4rem 0; }
figcaption { margin-bottom: 0.4rem; font-weight: 600; }
.scroll { width: fit-content; max-width: 100%; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
pre:focus-visible, .scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 0.92rem; line-height: 1.45; }
th, td { padding: 0.45rem 0.85rem; text-align: left; vertical-align: top; }
th { background: var(--raised); color: var(--muted); font-weight: 600; white-space: nowrap; vertical-align: bottom; }
td:first-child, td.text:last-child { min-width: 13rem; }
th.share { min-width: 8rem; }
td.number:first-child { min-width: 0; }
tbody tr { border-top: 1px solid var(--line); }
tbody tr:hover { background: var(--raised); }
.number, .share { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.share { background: linear-gradient(90deg, var(--share-back) var(--share, 0%), transparent var(--share, 0%)); }
img { display: block; max-width: 100%; height: auto; border-radius: 8px; background: #ffffff; }
main > p:last-child { margin-top: 2.5rem; color: var(--muted); font-size: 0.92rem; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.7rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.6rem; }
  .tally { gap: 0.5rem; }
  .tally li { padding: 0.6rem 0.7rem; }
}
@media print {
  nav { display: none; }
  body { display: block; padding: 0; }
  figure, pre { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""
