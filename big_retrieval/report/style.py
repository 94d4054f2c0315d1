"""The style sheet of a report: light and dark, narrow and wide, screen and paper; no other file."""

CSS = """
:root {
  color-scheme: light dark;
  --back: #ffffff; --card: #f6f7f9; --text: #1b2027; --soft: #5b6570; --line: #d9dee4;
  --link: #1f5fa8; --good: #1c7a43; --bad: #b3372b; --hit: 28 122 67; --miss: 179 55 43;
  --c0: #1f6fb5; --c1: #c4561b; --c2: #2a8a54; --c3: #8a4bab; --c4: #8f7411; --c5: #5e6b78;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14181d; --card: #1c2229; --text: #e4e8ec; --soft: #9aa5b1; --line: #323b45;
    --link: #7db4ee; --good: #5cc489; --bad: #f08a7e; --hit: 92 196 137; --miss: 240 138 126;
    --c0: #6bb0f0; --c1: #f0955c; --c2: #62c792; --c3: #c795e6; --c4: #d2b84c; --c5: #a3afbb;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: anywhere;
}
header, main { max-width: 1280px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 32px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 12px; letter-spacing: -.01em; }
h1 .one { display: inline-block; margin-right: 24px; }
h2 {
  font-size: 21px; line-height: 1.25; margin: 44px 0 14px; padding-top: 14px;
  border-top: 1px solid var(--line);
}
section:first-child h2 { margin-top: 18px; }
h3 { font-size: 16px; margin: 24px 0 8px; }
h4 { font-size: 15px; margin: 22px 0 4px; }
h5 { font-size: 14px; margin: 18px 0 2px; }
p { margin: 4px 0 10px; max-width: 78ch; }
ul, ol { margin: 0; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--link); outline-offset: 2px;
}
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 18px; }
.note { color: var(--soft); font-size: 13px; font-weight: normal; }
h3 .note, h4 .note { margin-left: 10px; }
.empty { color: var(--soft); font-style: italic; }
.block { margin-bottom: 22px; }
details { margin: 14px 0; }
summary { cursor: pointer; color: var(--link); padding: 4px 0; }

/* numbers in sight first */
.headlines {
  list-style: none; padding: 0; display: grid; gap: 10px; margin-bottom: 14px;
  grid-template-columns: repeat(auto-fill, minmax(190px, 1fr));
}
.headlines li {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
  display: flex; flex-direction: column;
}
.headlines .label { font-size: 13px; font-weight: 600; }
.big { font-size: 24px; line-height: 1.35; font-variant-numeric: tabular-nums; }
.big.better { font-weight: 650; }
.cards { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 18px;
}
.card h3 { margin-top: 0; }
.status::before {
  content: ""; display: inline-block; width: 9px; height: 9px; margin-right: 8px;
  border-radius: 50%; background: var(--soft);
}
.status.done::before { background: var(--good); }
.status.bad::before { background: var(--bad); border-radius: 0; }
dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: 3px 16px; }
dt { color: var(--soft); }
dd { margin: 0; }
.chip {
  display: inline-block; min-width: 20px; padding: 0 5px; margin-right: 8px; border-radius: 4px;
  font-size: 13px; line-height: 20px; font-weight: 650; text-align: center; vertical-align: 1px;
  color: var(--back); letter-spacing: 0;
}
.r0 { background: var(--c0); } .r1 { background: var(--c1); }
th .chip, td .chip, h5 .chip { margin-right: 0; }

/* tables */
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td {
  text-align: left; vertical-align: top; padding: 5px 14px 5px 0;
  border-bottom: 1px solid var(--line); font-weight: normal;
}
thead th {
  color: var(--soft); font-size: 13px; vertical-align: bottom; border-bottom-color: var(--soft);
}
thead th, .n { overflow-wrap: normal; }
tbody th { min-width: 9ch; max-width: 40ch; }
td { max-width: 64ch; }
td code, th code { display: inline-block; width: max-content; max-width: 46ch; }
.n { text-align: right; white-space: nowrap; padding-left: 10px; }
.k { white-space: nowrap; }
td.better { font-weight: 650; }
.change, .change td { color: var(--soft); }
tr:has(+ .change) td { border-bottom-color: transparent; }
.columns { display: flex; flex-wrap: wrap; gap: 6px 44px; align-items: flex-start; }
.columns > * { min-width: 0; max-width: 100%; }
.columns > .wide { flex-basis: 100%; }
.matrix th, .matrix td { padding: 4px 8px; }
.matrix tr > th:first-child { padding-left: 0; }
.matrix thead .n { max-width: 12ch; overflow: hidden; text-overflow: ellipsis; }
.hit { background: rgb(var(--hit) / calc(var(--s) * .5)); }
.miss { background: rgb(var(--miss) / calc(var(--s) * .6)); }
.bar {
  background: linear-gradient(90deg, rgb(var(--hit) / .22) var(--s), transparent 0);
  min-width: 90px;
}

/* charts */
.charts {
  display: grid; gap: 22px 28px;
  grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr));
}
.chart { margin: 0; min-width: 0; }
.chart svg { display: block; width: 100%; height: auto; }
figcaption { font-size: 14px; }
figcaption .note { display: block; }
.legend {
  list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 14px; font-size: 13px;
  color: var(--soft);
}
.legend svg { display: inline-block; width: 26px; height: 12px; margin-right: 5px; }
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg path { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
svg path.raw { stroke-width: 1; opacity: .38; }
svg circle { stroke: none; }
svg text.last { font-weight: 600; font-size: 11.5px; }
svg path.c0 { stroke: var(--c0); } svg circle.c0, svg text.c0 { fill: var(--c0); }
svg path.c1 { stroke: var(--c1); } svg circle.c1, svg text.c1 { fill: var(--c1); }
svg path.c2 { stroke: var(--c2); } svg circle.c2, svg text.c2 { fill: var(--c2); }
svg path.c3 { stroke: var(--c3); } svg circle.c3, svg text.c3 { fill: var(--c3); }
svg path.c4 { stroke: var(--c4); } svg circle.c4, svg text.c4 { fill: var(--c4); }
svg path.c5 { stroke: var(--c5); } svg circle.c5, svg text.c5 { fill: var(--c5); }
svg .d1 { stroke-dasharray: 7 4; }
svg .d2 { stroke-dasharray: 2 3; }
svg .d3 { stroke-dasharray: 9 3 2 3; }

/* examples */
.group { margin-bottom: 18px; }
.example {
  display: grid; grid-template-columns: 200px minmax(0, 1fr); gap: 8px 24px;
  padding: 12px 0; border-top: 1px solid var(--line); break-inside: avoid;
}
.example.seen { grid-template-columns: 110px minmax(0, 1fr); }
.query img { width: 96px; height: 96px; }
.query .words { font-weight: 600; }
.example img { display: block; object-fit: contain; background: var(--card); border-radius: 4px; }
.facts { color: var(--soft); font-size: 13px; margin: 0 0 6px; }
.found > div + div { margin-top: 12px; }
.found > .facts { margin-top: 10px; }
.tiles .mark, .tiles .score { font-size: 12.5px; line-height: 1.6; }
.tiles, .lines { list-style: none; padding: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; }
.tiles li {
  display: grid; width: 118px; padding: 5px; column-gap: 6px;
  border-radius: 6px; border: 1px dashed var(--line);
  align-content: start;
}
.tiles li.wide { width: 150px; }
.tiles li.right { border: 2px solid var(--good); padding: 4px; }
.tiles img { width: 96px; height: 96px; order: -1; margin-bottom: 4px; }
.tiles .apart { margin-left: 18px; }
.lines li {
  display: grid; grid-template-columns: 5ch 8.5ch 7ch minmax(0, 1fr); column-gap: 12px;
  align-items: baseline;
  padding: 2px 8px;
  border-left: 3px solid var(--line);
}
.lines li.right { border-left: 3px solid var(--good); }
.lines .apart { margin-top: 8px; }
.place, .score {
  color: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap;
}
.lines .place, .lines .score { text-align: right; }
.tiles li { grid-template-columns: 1fr auto; }
.tiles img { grid-column: 1 / -1; }
.tiles .words { grid-column: 1 / -1; }
.both { display: contents; }
.tiles .place { display: none; }
.tiles .apart .place { display: block; grid-column: 1 / -1; }
.tiles .apart .place::before { content: "rank "; }
.mark { font-size: 13px; font-weight: 600; white-space: nowrap; }
.right > .mark { color: var(--good); }
.wrong > .mark { color: var(--bad); }
.words { min-width: 0; }
.matched { font-size: 12px; line-height: 1.35; color: var(--soft); grid-column: 1 / -1; }
.matched .bar {
  display: flex; justify-content: space-between; gap: 6px; padding: 0 3px; border-radius: 3px;
  box-shadow: inset 0 0 0 1px var(--line);
}
.lines .matched {
  display: flex; flex-wrap: wrap; gap: 3px 8px; padding-bottom: 4px; grid-column: 4;
}

@media (min-width: 1000px) {
  .found.two { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0 28px; }
  .found.two > div { margin-top: 0; }
}
@media (max-width: 700px) {
  header, main { padding-left: 14px; padding-right: 14px; }
  h1 { font-size: 23px; }
  .headlines { grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); }
  .example, .example.seen { grid-template-columns: minmax(0, 1fr); }
  .lines li { grid-template-columns: 5ch 8ch minmax(0, 1fr); }
  td code, th code { max-width: 34ch; }
  .tiles { gap: 6px; }
  .tiles li { width: 116px; }
  .tiles li.wide { width: 144px; }
  .tiles .apart { margin-left: 0; }
  .lines li { padding-top: 4px; padding-bottom: 4px; }
  .lines .words { grid-column: 1 / -1; }
  .lines .score { text-align: left; }
  .lines .matched { grid-column: 1 / -1; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dd { margin-bottom: 6px; }
}
@media print {
  body { font-size: 11px; }
  nav { display: none; }
  .scroll { overflow: visible; }
  .chart, .card, .block table, tr { break-inside: avoid; }
  * { print-color-adjust: exact; }
}
"""
