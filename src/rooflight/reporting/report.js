"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const upward = heading.getAttribute("aria-sort") === "descending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", upward ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const unknown = (row) => row.cells[column].dataset.unknown !== undefined;
    const order = (one, other) => {
      if (unknown(one) || unknown(other)) return unknown(one) - unknown(other); // what is unknown comes last
      const [left, right] = upward ? [value(one), value(other)] : [value(other), value(one)];
      return typeof left === "number" ? left - right : left.localeCompare(right);
    };
    body.append(...[...body.rows].sort(order));
  });
}
