// Runs before anything is drawn: which theme this page has. The cookie tells the server, which draws the plots.
(function () {
  const root = document.documentElement;
  const said = new URLSearchParams(location.search).get("theme");
  let kept = null;
  try { kept = localStorage.getItem("workbench-theme"); } catch (e) { /* storage may be forbidden */ }
  const choice = ["dark", "light", "auto"].includes(said) ? said : ["dark", "light"].includes(kept) ? kept : "auto";
  const dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.drawn = root.dataset.theme;
  root.dataset.choice = choice;
  root.dataset.theme = dark ? "dark" : "light";
  if (said === null) document.cookie = "workbench-theme=" + root.dataset.theme + "; path=/; max-age=31536000; SameSite=Lax";
})();
