// The course's pages in JupyterLab, written as what a bundler would make of it: nothing has to be built.
//
// 1. A Vega chart's controls lie above it, its checkbox named play is a button, and it is no wider than the page.
// 2. A range input keeps its keys. JupyterLab would take the arrows to move to another cell.
// 3. A notebook that was only opened is not unsaved. JupyterLab writes the kernel's version into it, and calls it changed.
// 4. A panel of widgets that lost its kernel says how to get it back. JupyterLab says "model not found".

"use strict";

(() => {
  const LOST = "Error displaying widget: model not found";
  const RUN_AGAIN = "This panel is no longer connected to a kernel. Run the cell again to use it.";
  const CHARTS = `
    .vega-embed:has(.vega-bind) { display: flex; flex-direction: column; align-items: flex-start; }
    .vega-embed svg { max-width: 100%; height: auto; }
    .vega-bindings { order: -1; display: flex; flex-wrap: wrap; align-items: center; gap: 0 0.7em; margin: 4px 0; }
    .vega-bind label { display: flex; align-items: center; gap: 0.5em; }
    .vega-bind input[type=range] { width: 22em; }
    .vega-bind:has(input[name=play]) .vega-bind-name { position: absolute; clip-path: inset(50%); }
    .vega-bind input[name=play] { appearance: none; border: 1px solid; border-radius: 3px; padding: 0 0.5em; margin: 0; }
    .vega-bind input[name=play]::before { content: "▶"; }
    .vega-bind input[name=play]:checked::before { content: "❚❚"; }`;
  document.head.append(Object.assign(document.createElement("style"), { textContent: CHARTS }));

  document.addEventListener("focusin", ({ target }) => {
    if (target.matches("input[type=range]")) target.setAttribute("data-lm-suppress-shortcuts", "true");
  });

  function lost({ INotebookTracker }) {
    const explain = (changes) => {
      for (const { target } of changes) if (target.firstChild?.data === LOST) target.textContent = RUN_AGAIN;
    };
    const opened = (tracker, { node }) => new MutationObserver(explain).observe(node, { childList: true, subtree: true });
    const activate = (app, tracker) => void tracker.widgetAdded.connect(opened);
    return { id: "roseinfer-pages:lost", autoStart: true, requires: [INotebookTracker], activate };
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

  const plugins = (library) => [clean(library), lost(library)];
  let shared;
  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB["roseinfer-pages"] = {
    init: (scope) => { shared = scope; },
    get: async () => {
      const [version] = Object.values(shared["@jupyterlab/notebook"]);
      const made = plugins((await version.get())());
      return () => ({ __esModule: true, default: made });
    },
  };
})();
