"use strict";

// What a cell's tooltip says, in a line below the table: a finger cannot hover.
const map = document.getElementById("map"), detail = document.getElementById("detail");
function tell(event) {
  const cell = event.target.closest("td[title]");
  if (!cell || !map.contains(cell)) return;
  for (const chosen of map.querySelectorAll(".chosen")) chosen.classList.remove("chosen");
  cell.classList.add("chosen");
  detail.textContent = cell.title;
}
detail.hidden = false;
detail.textContent = "Tap or point at a cell for more of it.";
map.addEventListener("click", tell);
map.addEventListener("pointerover", tell);
