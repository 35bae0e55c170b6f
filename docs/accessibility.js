// Names the search dialog, and lets keyboards scroll wide tables: the theme does neither.
addEventListener("load", () => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0
})
