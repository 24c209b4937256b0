"use strict";
// Runs before anything is drawn, so that a dark page never flashes.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("ddplint-theme"); } catch { /* storage can be forbidden for files */ }
  if (theme !== "light" && theme !== "dark") {
    theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  document.documentElement.dataset.theme = theme;
})();
