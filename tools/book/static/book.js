// Draws the charts of recorded outputs, and keeps the theme's buttons out of what the search page quotes.
// Vega and Vega-Lite are in charts.js, so that a page needs no network.

"use strict";

addEventListener("DOMContentLoaded", () => {
  const draw = async (chart) => {
    const spec = JSON.parse(chart.querySelector("script").textContent);
    const box = chart.appendChild(document.createElement("div"));
    await vegaEmbed(box, spec, { mode: chart.dataset.mode, actions: false, renderer: "svg" });
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "600px" });
  for (const chart of document.querySelectorAll("div.chart")) seen.observe(chart);
});

// Sphinx quotes from [role=main], which in this theme begins with the buttons above the text.
addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const { htmlToText } = Search;
  Search.htmlToText = (page, anchor) => {
    const article = new DOMParser().parseFromString(page, "text/html").querySelector("article.bd-article");
    for (const cell of article.querySelectorAll("dt, th, td")) cell.append(" "); // or its last word runs into the next
    return htmlToText(`<main role="main">${article.outerHTML}</main>`, anchor);
  };
});
