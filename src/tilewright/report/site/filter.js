// Filters over the rows of a table of results. Without this script the table is whole, and the form stays hidden.
"use strict";

const form = document.querySelector("form.filters");
const rows = Array.from(document.querySelectorAll("table.results > tbody > tr"));

function wanted() {
  return Object.fromEntries(Array.from(new FormData(form)).filter(([, value]) => value !== ""));
}

function fits(row, asked) {
  return Object.entries(asked).every(([name, value]) =>
    name === "text" ? row.textContent.toLowerCase().includes(value.toLowerCase()) : row.dataset[name] === value);
}

function show() {
  const asked = wanted();
  let shown = 0;
  for (const row of rows) {
    row.hidden = !fits(row, asked);
    shown += row.hidden ? 0 : 1;
  }
  form.querySelector("output").textContent = `${shown} of ${rows.length} shown`;
  const query = new URLSearchParams(asked).toString();
  try {
    history.replaceState(null, "", location.pathname + (query ? `?${query}` : "") + location.hash);
  } catch {
    // A page opened from a disk may keep its address.
  }
}

if (form) {
  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = form.elements.namedItem(name);
    if (field) field.value = value;
  }
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("button").addEventListener("click", () => {
    form.reset();
    show();
  });
  show();
}
