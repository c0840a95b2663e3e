// Tables: the title of a column sorts by it, a second time the other way round.

function sortBy(button) {
  const head = button.closest("th");
  const body = button.closest("table").tBodies[0];
  const column = head.cellIndex;
  // numbers: the largest first
  const [first, second] = head.classList.contains("number") ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = head.getAttribute("aria-sort") === first ? second : first;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((a, b) => compareKeys(a.key, b.key, order === "descending"));
  body.append(...rows.map(({ row }) => row));
}

// The number behind a cell, or its text; what is not known has neither.
function keyOf(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return cell.classList.contains("number") ? null : cell.textContent;
}

// What is not known stands last in both orders.
function compareKeys(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return descending ? -order : order;
}

function listenToTables() {
  for (const button of document.querySelectorAll("button.sort")) {
    button.addEventListener("click", () => sortBy(button));
  }
}
