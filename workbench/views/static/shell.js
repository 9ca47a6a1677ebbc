// The page's frame: clock, freshness, theme, the way between pages. What is shown inside is Bokeh's.
(function () {
  const root = document.documentElement, $ = (id) => document.getElementById(id);
  const two = (n) => String(n).padStart(2, "0");
  const utc = (d) => two(d.getUTCHours()) + ":" + two(d.getUTCMinutes()) + ":" + two(d.getUTCSeconds());
  const day = (d) => d.getUTCFullYear() + "-" + two(d.getUTCMonth() + 1) + "-" + two(d.getUTCDate());

  // theme: auto → dark → light → auto; remembered, and in the address when it was there
  const marks = { auto: "◐", dark: "☾", light: "☀" }, button = $("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const roots = () => (window.Bokeh ? Bokeh.documents.flatMap((doc) => doc.roots()) : []);
  const wanted = () => (root.dataset.choice === "auto" ? (system.matches ? "dark" : "light") : root.dataset.choice);
  const show = () => {
    const theme = wanted();
    root.dataset.theme = theme;
    button.textContent = marks[root.dataset.choice];
    button.setAttribute("aria-label", "Theme: " + root.dataset.choice + ". Switch");
    button.title = "Theme: " + root.dataset.choice + (root.dataset.choice === "auto" ? " (as the system says)" : "");
    const teller = roots().find((model) => model.name === "dark");
    if (!teller) return;
    // figures are recoloured here, at once; the server draws the next ones so
    if (root.dataset.drawn !== theme) { root.dataset.drawn = theme; switchPlots(theme === "dark"); }
    if (teller.active !== (theme === "dark")) teller.active = theme === "dark";
  };
  button.addEventListener("click", () => {
    const next = { auto: "dark", dark: "light", light: "auto" }[root.dataset.choice];
    root.dataset.choice = next;
    try { next === "auto" ? localStorage.removeItem("workbench-theme") : localStorage.setItem("workbench-theme", next); } catch (e) { /* forbidden */ }
    document.cookie = "workbench-theme=" + wanted() + "; path=/; max-age=31536000; SameSite=Lax";
    const url = new URL(location.href);
    if (url.searchParams.has("theme")) { url.searchParams.set("theme", next); const model = place(); model ? (model.search = url.search) : history.replaceState(null, "", url); }
    show(); carry();
  });
  system.addEventListener("change", show);

  // links of the frame keep a theme that the address asks for
  const carry = () => {
    const theme = new URLSearchParams(location.search).get("theme");
    for (const link of document.querySelectorAll("a[data-nav]")) {
      const url = new URL(link.getAttribute("href"), location.href);
      theme ? url.searchParams.set("theme", theme) : url.searchParams.delete("theme");
      link.href = url.pathname + url.search;
    }
  };
  carry();

  // clock and freshness
  let told = null, lost = false;
  const age = (s) => (s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d");
  const here = document.querySelector("[aria-current=page]")?.textContent.trim();
  const tick = () => {
    const now = new Date();
    $("clock").textContent = day(now) + " " + utc(now) + " UTC";
    $("clock").title = "here: " + now.toLocaleString();
    const fresh = $("fresh"), words = fresh.querySelector(".words");
    if (lost) { fresh.dataset.state = "lost"; words.textContent = "no connection"; return; }
    if (!told) return;
    const part = here && here.startsWith("Fleet") && told.fleet ? told.fleet : here && here.startsWith("Remediation") && told.queue ? told.queue : here && here.startsWith("Account") && told.account ? told.account : told.inbox;
    if (!part || part.time == null) { fresh.dataset.state = "none"; words.textContent = part && part.why ? part.why : "no live data"; fresh.title = ""; return; }
    const seconds = Math.max(0, told.now - part.time + (Date.now() - told.at) / 1000);
    const stale = part.period ? seconds > 2 * part.period : false;
    fresh.dataset.state = stale ? "stale" : "ok";
    const text = (stale ? "stale: " : "") + "as of " + utc(new Date(part.time * 1000)) + " UTC, " + age(seconds) + " ago";
    if (words.textContent !== text) words.textContent = text;
    fresh.title = part.period ? "asked every " + part.period + " s; here: " + new Date(part.time * 1000).toLocaleString() : "";
  };
  const ask = async () => {
    try {
      const answer = await fetch("./api/fresh", { headers: { Accept: "application/json" }, cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      told = await answer.json(); told.at = Date.now(); lost = false;
      const count = $("new-count"), fresh = told.inbox ? told.inbox.new : 0;
      count.hidden = !fresh; count.textContent = fresh; count.title = fresh + " not looked at";
    } catch (e) { lost = true; }
    $("lost").hidden = !lost;
    tick();
  };
  setInterval(tick, 1000);
  setInterval(() => { if (!document.hidden) ask(); }, 10000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  $("again").addEventListener("click", () => location.reload());
  ask(); tick();

  // a link to another state of this page: through Bokeh's model of the address, so that no new page is needed
  const place = () => roots().find((model) => "search" in model && "pathname" in model);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.composedPath().find((node) => node instanceof HTMLAnchorElement && node.hasAttribute("data-state"));
    const model = link && place();
    if (!model) return;
    event.preventDefault();
    const url = new URL(link.href);
    model.search = url.search;
  });
  // back and forward: Bokeh's model only writes the address; and what is there already is not pushed again
  const push = history.pushState.bind(history);
  history.pushState = (data, title, url) => { if (url == null || new URL(url, location.href).href !== location.href) push(data, title, url); };
  window.addEventListener("popstate", () => { const model = place(); if (model) { model.search = location.search; carry(); } });
  // local time on hover, for every time that a page tells in UTC
  document.addEventListener("pointerover", (event) => {
    for (const node of event.composedPath()) if (node instanceof HTMLTimeElement && node.dateTime) {
      if (!node.title) { const at = new Date(node.dateTime); if (!isNaN(at)) node.title = at.toLocaleString([], { dateStyle: "medium", timeStyle: "long" }) + " (local)"; }
      return;
    }
  });

  // what stands in for the view goes when the view is drawn
  const stage = document.querySelector(".root-main"), settle = () => {
    if (!stage || stage.offsetHeight < 40) return;
    watch.disconnect(); $("skeleton").remove(); $("first")?.remove(); stage.classList.remove("early"); show();
  };
  const watch = new ResizeObserver(settle);
  if (stage) { stage.classList.add("early"); watch.observe(stage); }
  show();
})();
