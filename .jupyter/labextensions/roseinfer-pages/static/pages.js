// The course's pages in JupyterLab, written as what a bundler would make of it: nothing has to be built.
//
// 1. An output of type STEPS is shown as its text/html, a <details> for each frame, with a slider and a play button.
//    It needs no kernel, and no trust: HTML of a notebook that is not trusted is sanitised.
// 2. A range input keeps its keys. JupyterLab would take the arrows to move to another cell.
// 3. A notebook that was only opened is not unsaved. JupyterLab writes the kernel's version into it, and calls it changed.

"use strict";

(() => {
  const STEPS = "application/vnd.roseinfer.steps+json";
  const PLAY_MS = 700; // a frame
  const SVG = {
    svg: ["width", "height", "viewBox", "viewbox", "role", "aria-label", "fill", "font-family", "font-size"],
    g: [], title: [],
    rect: ["x", "y", "width", "height", "rx", "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity"],
    text: ["x", "y", "text-anchor", "fill", "font-size", "font-weight", "fill-opacity", "opacity"],
    path: ["d", "fill", "stroke-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity"],
  };
  const HTML = ["b", "br", "code", "details", "div", "em", "i", "p", "span", "strong", "summary", "table", "tbody", "td",
    "th", "thead", "tr"];
  // What frames are made of; JupyterLab's own list has no SVG. Its list of styles is left as it is.
  const FRAMES = {
    allowedTags: [...HTML, ...Object.keys(SVG)],
    allowedAttributes: { "*": ["aria-label", "class", "style", "title"], th: ["scope"], details: ["open"], ...SVG },
  };

  document.addEventListener("focusin", ({ target }) => {
    if (target.matches("input[type=range]")) target.setAttribute("data-lm-suppress-shortcuts", "true");
  });

  function element(tag, properties) {
    return Object.assign(document.createElement(tag), properties);
  }

  function show(node, label) {
    const frames = [...node.querySelectorAll(":scope > .rose-steps > details")];
    const last = frames.length - 1;
    const controls = element("div", { className: "rose-steps-controls" });
    const play = element("button", { type: "button" });
    const slider = element("input", { type: "range", min: 0, max: last, value: 0, ariaLabel: label });
    const shown = element("output");
    let timer = null;

    const draw = () => {
      frames.forEach((frame, number) => Object.assign(frame, { open: true, hidden: number !== slider.valueAsNumber }));
      shown.value = `${label} ${slider.value} of ${last}`;
    };
    const stop = () => {
      clearInterval(timer);
      timer = null;
      Object.assign(play, { textContent: "▶", title: "play", ariaLabel: "play" });
    };
    const next = () => {
      if (!node.isConnected || slider.valueAsNumber === last) return stop();
      slider.stepUp();
      draw();
    };
    play.addEventListener("click", () => {
      if (timer !== null) return stop();
      if (slider.valueAsNumber === last) slider.value = 0;
      draw();
      timer = setInterval(next, PLAY_MS);
      Object.assign(play, { textContent: "⏸", title: "pause", ariaLabel: "pause" });
    });
    slider.addEventListener("input", () => { stop(); draw(); });

    for (const frame of frames) frame.querySelector("summary").hidden = true; // the slider says which one it is
    controls.style.cssText = "display: flex; align-items: center; gap: 0.7em; margin: 4px 0";
    slider.style.width = "22em";
    controls.append(play, slider, shown);
    node.prepend(controls);
    stop();
    draw();
  }

  function renderer({ Widget }) {
    class Steps extends Widget {
      constructor({ sanitizer }) {
        super();
        this.sanitizer = sanitizer;
        this.addClass("jp-RenderedHTMLCommon");
      }
      async renderModel({ data, trusted }) {
        const html = data["text/html"];
        this.node.innerHTML = trusted ? html : this.sanitizer.sanitize(html, FRAMES);
        show(this.node, data[STEPS].label);
      }
    }
    const rendererFactory = { safe: true, mimeTypes: [STEPS], createRenderer: (options) => new Steps(options) };
    return { id: "roseinfer-pages:steps", rendererFactory, rank: 0, dataType: "json" };
  }

  function clean({ INotebookTracker }) {
    async function opened(tracker, { context }) {
      const cells = () => JSON.stringify(context.model.sharedModel.toJSON().cells);
      await context.ready;
      const before = cells();
      await context.sessionContext.ready;
      const { kernel } = context.sessionContext.session ?? {};
      if (!kernel) return;
      await Promise.all([kernel.info, kernel.spec]);
      if (cells() === before) context.model.dirty = false;
    }
    const activate = (app, tracker) => void tracker.widgetAdded.connect(opened);
    return { id: "roseinfer-pages:clean", autoStart: true, requires: [INotebookTracker], activate };
  }

  const MODULES = { "./renderer": ["@lumino/widgets", renderer], "./clean": ["@jupyterlab/notebook", clean] };
  let shared;
  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB["roseinfer-pages"] = {
    init: (scope) => { shared = scope; },
    get: async (name) => {
      const [library, make] = MODULES[name];
      const [version] = Object.values(shared[library]);
      const made = make((await version.get())());
      return () => ({ __esModule: true, default: made });
    },
  };
})();
