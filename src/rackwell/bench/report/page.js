/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // A cursor over each plot: nearest measured place, and what every line is there.
  for (const plot of document.querySelectorAll("svg.plot[data-x]")) {
    const xs = plot.dataset.x.split(" ").map(Number);
    const names = plot.dataset.name.split("|");
    const lines = [...plot.querySelectorAll(".series")].map((group) => ({
      css: [...group.classList].slice(1).join(" "),
      label: group.dataset.label,
      values: group.dataset.y.split("|"),
    }));
    const rule = document.createElementNS(SVG, "line");
    rule.setAttribute("class", "cursor");
    rule.setAttribute("y1", plot.dataset.top);
    rule.setAttribute("y2", plot.dataset.bottom);
    rule.setAttribute("visibility", "hidden");
    plot.append(rule);
    const note = document.createElement("div");
    note.className = "readout";
    note.setAttribute("role", "status");
    note.hidden = true;
    plot.parentElement.append(note);
    let at = -1;

    const show = (place) => {
      at = Math.max(0, Math.min(xs.length - 1, place));
      rule.setAttribute("x1", xs[at]);
      rule.setAttribute("x2", xs[at]);
      rule.setAttribute("visibility", "visible");
      note.replaceChildren();
      const head = document.createElement("b");
      head.textContent = names[at];
      note.append(head);
      for (const line of lines) {
        if (!line.values[at]) continue;
        const entry = document.createElement("span");
        entry.className = line.css;
        const mark = document.createElement("i");
        entry.append(mark, line.label + " ", Object.assign(document.createElement("b"), { textContent: line.values[at] }));
        note.append(entry);
      }
      note.hidden = false;
      const box = plot.getBoundingClientRect();
      const width = plot.viewBox.baseVal.width;
      const left = (xs[at] / width) * box.width;
      note.classList.toggle("left", xs[at] > width / 2);
      note.style.setProperty("--at", left + "px");
    };
    const hide = () => {
      rule.setAttribute("visibility", "hidden");
      note.hidden = true;
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
      let best = 0;
      xs.forEach((value, i) => {
        if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = i;
      });
      show(best);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        show(at + step);
        event.preventDefault();
      } else if (event.key === "Escape") hide();
    });
  }

  // A GPU's name in the legend brings its lines to the front.
  for (const entry of document.querySelectorAll(".legend li")) {
    const figure = entry.closest("figure");
    const mark = (on) => {
      figure.classList.toggle("picking", on);
      for (const group of figure.querySelectorAll(".series")) {
        group.classList.toggle("picked", on && group.dataset.label === entry.dataset.series);
      }
    };
    entry.addEventListener("pointerenter", () => mark(true));
    entry.addEventListener("pointerleave", () => mark(false));
  }

  // Everything is opened for paper.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details.window")) part.open = true;
  });

  const save = document.getElementById("save");
  save.hidden = false;
  save.addEventListener("click", () => {
    const data = document.getElementById("data").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
    link.download = "bench.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
})();
