// Names the search dialog, lets keyboards scroll wide tables, and gives the cells of tables that do not fit
// their headings, which phones show as in style.css: the theme does none of this.
addEventListener("load", () => {
  document.querySelector(".md-search").setAttribute("aria-label", "Search")
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const headings = [...table.querySelectorAll("thead th")].map(cell => cell.textContent)
    const space = table.closest(".md-typeset__scrollwrap")
    if (headings.length < 3 || !space || space.scrollWidth <= space.clientWidth) continue
    table.dataset.headings = "in cells"
    for (const row of table.tBodies[0].rows)
      for (const [number, cell] of [...row.cells].entries()) cell.dataset.heading = headings[number]
  }
})
