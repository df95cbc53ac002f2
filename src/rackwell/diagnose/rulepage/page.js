// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const words = document.getElementById("words");
  const area = document.getElementById("area");
  const severity = document.getElementById("severity");
  const shown = document.getElementById("shown");
  const nothing = document.getElementById("nothing");
  const sections = [...document.querySelectorAll("section[data-area]")].map((section) => ({
    section,
    name: section.dataset.area,
    rules: [...section.querySelectorAll("article.rule")].map((rule) => ({
      rule,
      severity: rule.dataset.severity,
      text: rule.textContent.toLowerCase(),
      patterns: null,
    })),
  }));

  // an expression of RE2 as the browser's, where it is one
  const expression = (text) => {
    let flags = "";
    let source = text.replaceAll("(?P<", "(?<");
    if (source.startsWith("(?i)")) { flags = "i"; source = source.slice(4); }
    try { return new RegExp(source, flags); } catch { return null; }
  };
  const says = (entry, line) => {
    entry.patterns ??= [...entry.rule.querySelectorAll("li.telling > code")].map((code) => expression(code.textContent));
    return entry.patterns.some((pattern) => pattern !== null && pattern.test(line));
  };

  const search = () => {
    const line = words.value.trim().slice(0, 2000);
    const parts = line.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 40);
    const pasted = line.length >= 12;
    let count = 0;
    for (const { section, name, rules } of sections) {
      let here = 0;
      for (const entry of rules) {
        const wanted = (!area.value || area.value === name) && (!severity.value || severity.value === entry.severity);
        const found = wanted && (parts.every((part) => entry.text.includes(part)) || (pasted && says(entry, line)));
        entry.rule.hidden = !found;
        here += found ? 1 : 0;
      }
      section.hidden = here === 0;
      section.querySelector("h2 > span").textContent = here;
      count += here;
    }
    shown.textContent = `${count} ${count === 1 ? "rule" : "rules"}`;
    nothing.hidden = count > 0;
  };
  let waiting = 0;
  words.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 120); });
  area.addEventListener("change", search);
  severity.addEventListener("change", search);
  const asked = decodeURIComponent(location.hash.slice(1));
  if (asked.startsWith("?")) { words.value = asked.slice(1); search(); }
})();
