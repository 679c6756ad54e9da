// Draws the charts of recorded outputs. Vega and Vega-Lite are in charts.js, so that a page needs no network.

"use strict";

addEventListener("DOMContentLoaded", () => {
  const draw = async (chart) => {
    const spec = JSON.parse(chart.querySelector("script").textContent);
    const box = chart.appendChild(document.createElement("div"));
    await vegaEmbed(box, spec, { actions: false, renderer: "svg" });
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
