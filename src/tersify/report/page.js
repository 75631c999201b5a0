"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  document.getElementById("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.body).colorScheme === "dark" ||
      (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
  });

  function show(text, event) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY - 14 - height < 0 ? event.clientY + 18 : event.clientY - 14 - height;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = top + "px";
  }

  // A finger leaves at once when it lifts, so what it asked for stays until the next touch.
  function point(target, answer, end) {
    target.addEventListener("pointermove", answer);
    target.addEventListener("pointerdown", answer);
    target.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") end(); });
  }
  addEventListener("pointerdown", () => { tip.hidden = true; }, { capture: true });

  const number = (value) => String(Number(value.toPrecision(5))).replace("-", "−");
  const shown = (run) => !document.querySelector(`[data-toggles="${run}"][aria-pressed="false"]`);

  function nearest(xs, x) {
    let best = 0;
    xs.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = i; });
    return best;
  }

  function lines(figure, data) {
    const svg = figure.querySelector("svg");
    const layer = document.createElementNS(svg.namespaceURI, "g");
    layer.setAttribute("pointer-events", "none");
    svg.append(layer);
    const [left, top, right, bottom] = data.box;
    const place = (v, [low, high], from, to) => from + (to - from) * (v - low) / (high - low || 1);
    const mark = (name, attributes) => {
      const element = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      layer.append(element);
    };
    point(svg, (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const share = Math.min(1, Math.max(0, (at.x - left) / (right - left)));
      const x = data.x[0] + share * (data.x[1] - data.x[0]);
      const all = data.series.filter((s) => shown(s.run));
      layer.replaceChildren();
      if (!all.length) return;
      const epoch = all.map((s) => s.xs[nearest(s.xs, x)]).sort((a, b) => Math.abs(a - x) - Math.abs(b - x))[0];
      const px = place(epoch, data.x, left, right);
      mark("line", { x1: px, x2: px, y1: top, y2: bottom, stroke: "var(--muted)", "stroke-dasharray": "2 3" });
      const rows = [`epoch ${epoch}`];
      for (const s of all) {
        const i = s.xs.indexOf(epoch);
        if (i < 0) continue;
        rows.push(`${s.name}: ${number(s.ys[i])}${data.unit}`);
        const cy = place(s.ys[i], data.y, bottom, top);
        if (cy <= bottom) mark("circle", { cx: px, cy, r: 3.5, fill: `var(--s${s.run % 8})`, stroke: "var(--surface)" });
      }
      show(rows.join("\n"), event);
    }, () => { layer.replaceChildren(); tip.hidden = true; });
  }

  for (const figure of document.querySelectorAll("figure")) {
    const data = figure.querySelector("script");
    if (data) lines(figure, JSON.parse(data.textContent));
    figure.querySelector(".save").addEventListener("click", () => save(figure));
  }
  for (const marked of document.querySelectorAll("[data-tip]")) {
    point(marked, (event) => show(marked.dataset.tip, event), () => { tip.hidden = true; });
  }
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  function save(figure) {
    const style = getComputedStyle(root);
    const copy = figure.querySelector("svg").cloneNode(true);
    const [x, y, width, height] = copy.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const probe = document.createElement("i");
    document.body.append(probe);
    const text = new XMLSerializer().serializeToString(copy).replace(/var\((--\w+)\)/g, (_, name) => {
      probe.style.color = style.getPropertyValue(name);
      return getComputedStyle(probe).color;
    });
    probe.remove();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    link.download = figure.id + ".svg";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  for (const button of document.querySelectorAll("[data-toggles]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", on);
      for (const element of document.querySelectorAll(`[data-run="${button.dataset.toggles}"]`)) {
        element.style.display = on ? "" : "none";
      }
    });
  }

  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      // Numbers are most often wanted largest first, names in their order.
      const down = before ? before === "ascending" : numeric;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return numeric ? (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value)) : cell.textContent;
      };
      const sign = down ? -1 : 1;
      const rows = [...body.rows].sort((a, b) => {
        const [p, q] = [key(a), key(b)];
        if (!numeric) return sign * p.localeCompare(q, undefined, { numeric: true });
        return isNaN(p) || isNaN(q) ? isNaN(p) - isNaN(q) : sign * (p - q);
      });
      body.append(...rows);
    }));
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const table = button.parentElement.querySelector("table");
      const text = table
        ? [...table.rows].map((row) => [...row.cells].map((c) => c.dataset.value ?? c.textContent).join("\t")).join("\n")
        : button.parentElement.querySelector("pre").textContent;
      let done = true;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = document.createElement("textarea");
        area.value = text;
        document.body.append(area);
        area.select();
        done = document.execCommand("copy");
        area.remove();
      }
      button.textContent = done ? "Copied" : "Not allowed";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
