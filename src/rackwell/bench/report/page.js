/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const nearest = (xs, x) => xs.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(xs[best] - x) ? i : best), 0);
  const places = (element) => element.dataset.x.split(" ").map(Number);

  // A cursor over each plot: nearest measured place, and what every line is there.
  function cursor(plot) {
    const xs = places(plot);
    // a timeline's panels have times of their own
    const groups = [...plot.querySelectorAll("g[data-x]")];
    const parts = (groups.length ? groups : [plot]).map((part) => ({
      xs: places(part),
      names: (part.dataset.names || part.dataset.name || "").split("|"),
      what: part.dataset.what || "",
      lines: [...part.querySelectorAll(".series[data-y]")].map((group) => ({
        css: [...group.classList].slice(1).join(" "),
        label: group.dataset.label,
        values: group.dataset.y.split("|"),
      })),
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
      const x = xs[at];
      rule.setAttribute("x1", x);
      rule.setAttribute("x2", x);
      rule.setAttribute("visibility", "visible");
      note.replaceChildren();
      const head = document.createElement("b");
      const longest = parts.reduce((a, b) => (b.xs.length > a.xs.length ? b : a));
      head.textContent = longest.names[nearest(longest.xs, x)];
      note.append(head);
      for (const part of parts) {
        const i = nearest(part.xs, x);
        for (const line of part.lines) {
          if (!line.values[i]) continue;
          const entry = document.createElement("span");
          entry.className = line.css;
          const label = line.label === "mean" && part.what ? part.what + ", mean " : line.label + " ";
          entry.append(
            document.createElement("i"),
            label,
            Object.assign(document.createElement("b"), { textContent: line.values[i] }),
          );
          note.append(entry);
        }
      }
      note.hidden = false;
      const box = plot.getBoundingClientRect();
      const width = plot.viewBox.baseVal.width;
      note.classList.toggle("left", x > width / 2);
      note.style.setProperty("--at", (x / width) * box.width + "px");
    };
    const hide = () => {
      rule.setAttribute("visibility", "hidden");
      note.hidden = true;
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      show(nearest(xs, ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width));
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        show(at + step);
        event.preventDefault();
      } else if (event.key === "Home" || event.key === "End") {
        show(event.key === "Home" ? 0 : xs.length - 1);
        event.preventDefault();
      } else if (event.key === "Escape") hide();
    });
  }
  document.querySelectorAll("svg.plot[data-x]").forEach(cursor);

  // A GPU's name in the legend brings its lines to the front.
  for (const entry of document.querySelectorAll(".legend button")) {
    const figure = entry.closest("figure");
    const all = [...figure.querySelectorAll(".legend button")];
    const mark = (name) => {
      figure.classList.toggle("picking", name !== null);
      for (const group of figure.querySelectorAll(".series")) {
        group.classList.toggle("picked", group.dataset.label === name);
      }
    };
    const pressed = () => all.find((each) => each.getAttribute("aria-pressed") === "true");
    const settle = () => mark(pressed()?.dataset.series ?? null);
    entry.addEventListener("pointerenter", () => mark(entry.dataset.series));
    entry.addEventListener("pointerleave", settle);
    entry.addEventListener("click", () => {
      const on = entry.getAttribute("aria-pressed") !== "true";
      all.forEach((each) => each.setAttribute("aria-pressed", String(on && each === entry)));
      settle();
    });
  }

  // One of several is shown; without this script, all of them are.
  for (const chooser of document.querySelectorAll(".chooser")) {
    const buttons = [...chooser.querySelectorAll("button")];
    const parts = document.querySelectorAll(`[data-of="${chooser.dataset.for}"]`);
    const show = (choice) => {
      buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.choice === choice)));
      for (const part of parts) {
        part.classList.toggle("away", part.dataset.choice !== choice);
        part.classList.toggle("other", chooser.dataset.for === "point" && part.dataset.choice !== choice);
      }
    };
    buttons.forEach((each) => each.addEventListener("click", () => show(each.dataset.choice)));
    chooser.hidden = false;
    const first = buttons.find((each) => each.getAttribute("aria-pressed") === "true") || buttons[0];
    show(first.dataset.choice);
  }

  const save = document.getElementById("save");
  save.hidden = false;
  save.addEventListener("click", () => {
    const data = document.getElementById("data").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
    link.download = "bench-figures.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
})();
