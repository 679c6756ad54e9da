"""The script behind teach.timeline: buttons, arrow keys, dragging, and Ctrl with the wheel change the range shown."""

# A function of the view's class name and its data. Bars nearer than two pixels are drawn as one, unless they have
# names of their own. A view that is shown twice works twice; one drawn already is left alone.
SCRIPT = """(id, data) => {
  for (const view of document.querySelectorAll("." + id)) {
    if (view.dataset.live) continue;
    view.dataset.live = "yes";
    const tracks = view.querySelectorAll(".rose-track"), axis = view.querySelector(".rose-axis");
    let from = 0, to = data.whole;
    const ms = (ns) => (ns / 1e6).toFixed(to - from < 1e5 ? 4 : 3) + " ms";
    const bar = (start, end, paint, text, title) => {
      const left = Math.max(start, from), right = Math.min(end, to), box = document.createElement("div");
      box.style.cssText = data.bar + ";" + paint + `;left:${100 * (left - from) / (to - from)}%;`
        + `width:${Math.max(100 * (right - left) / (to - from), 0.1)}%`;
      box.title = title;
      if ((right - left) / (to - from) > 0.009 * text.length) box.textContent = text;
      return box;
    };
    const draw = () => data.lanes.forEach((lane, i) => {
      const shown = [], near = lane.named ? -1 : (to - from) / 500;
      for (const [start, dur, name] of lane.bars) {
        if (start + dur < from || start > to) continue;
        const last = shown[shown.length - 1];
        if (last && near > 0 && start - last[1] < near && dur < near) {
          last[1] = Math.max(last[1], start + dur); last[3] += 1;
        } else shown.push([start, start + dur, name, 1]);
      }
      tracks[i].replaceChildren(...shown.map(([start, end, name, n]) => {
        const text = n > 1 ? n + " events" : data.names[name];
        return bar(start, end, data.paints[name], n > 1 ? "" : text.split(".").pop(),
          `${text}: ${ms(end - start)}, from ${ms(start)}`);
      }));
    });
    const show = (a, b) => {
      const width = Math.min(Math.max(b - a, 1000), data.whole);
      from = Math.min(Math.max(a, 0), data.whole - width); to = from + width;
      axis.replaceChildren(...[0, 1, 2, 3, 4].map((i) => {
        const tick = document.createElement("span");
        tick.textContent = ms(from + i * width / 4);
        return tick;
      }));
      draw();
    };
    const zoom = (factor, at) => show(at - (at - from) * factor, at + (to - at) * factor);
    const pan = (share) => show(from + share * (to - from), to + share * (to - from));
    const moves = {
      "zoom in": () => zoom(0.5, (from + to) / 2), "zoom out": () => zoom(2, (from + to) / 2),
      "earlier": () => pan(-0.3), "later": () => pan(0.3), "all": () => show(0, data.whole),
    };
    const buttons = document.createElement("div");
    buttons.append(...Object.entries(moves).map(([name, move]) => {
      const button = document.createElement("button");
      button.textContent = name; button.onclick = move;
      button.style.cssText = "margin-right: 4px; padding: 1px 8px; background: transparent; color: inherit;"
        + "border: 1px solid rgba(128, 128, 128, 0.8); border-radius: 3px; cursor: pointer";
      return button;
    }), "or drag, or Ctrl + wheel; point at a bar for its name and time");
    buttons.style.cssText = "margin: 4px 0; font-size: 12px";
    view.before(buttons);
    const at = (track, event) => {
      const box = track.getBoundingClientRect();
      return from + (to - from) * (event.clientX - box.left) / box.width;
    };
    for (const track of tracks) {
      track.style.cursor = "grab"; track.style.touchAction = "pan-y";
      track.onwheel = (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        zoom(event.deltaY < 0 ? 0.8 : 1.25, at(track, event));
      };
      track.onpointerdown = (event) => track.setPointerCapture(event.pointerId);
      track.onpointermove = (event) => {
        if (event.buttons) pan(-event.movementX / track.getBoundingClientRect().width);
      };
    }
    show(0, data.whole);
  }
}"""
