/* SPDX-License-Identifier: Apache-2.0 */
"use strict";
(() => {
  const table = document.querySelector("table.fleet");
  const body = table.tBodies[0];
  const lines = [...body.rows];

  // A title sorts by its column, again the other way round; what is not known comes last both ways.
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : head.dataset.down === "yes";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (line) => line.cells[column].dataset.sort;
      lines.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const numbers = !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
        const order = numbers ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
        return down ? -order : order;
      });
      body.append(...lines);
    });
  });

  const find = document.getElementById("find");
  const state = document.getElementById("state");
  const shown = document.getElementById("shown");
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const line of lines) {
      const fits =
        words.every((word) => line.dataset.find.includes(word)) && (!state.value || line.dataset.state === state.value);
      line.classList.toggle("away", !fits);
      count += fits;
    }
    shown.textContent = count === lines.length ? "" : `${count} of ${lines.length} shown`;
  };
  find.addEventListener("input", filter);
  state.addEventListener("change", filter);
  const form = find.closest("form");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
