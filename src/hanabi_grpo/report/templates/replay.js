"use strict";

// The board before move number `turn` (from 0); after the last move it is the final one.
function position(game, turn) {
  const [numColors, numRanks, handSize, hints, lives] = game.board;
  const card = (at) => ({ at, text: game.deck.slice(2 * at, 2 * at + 2), colors: range(numColors), ranks: range(numRanks),
    colorHinted: false, rankHinted: false });
  const hands = game.players.map((_, seat) => range(handSize).map((slot) => card(seat * handSize + slot)));
  const board = { hands, stacks: Array(numColors).fill(0), discards: [], hints, lives, next: hands.length * handSize };
  for (const [seat, kind, where, value, hintsLeft, livesLeft, drawn] of game.moves.slice(0, turn)) {
    if (kind === "c" || kind === "r") {
      hands[where].forEach((one) => hint(one, kind, value));
    } else {
      const [gone] = hands[seat].splice(where, 1);
      if (kind === "p" && value) board.stacks[colorOf(gone)] += 1;
      else board.discards.push(gone);
      if (drawn) hands[seat].push(card(board.next));
      board.next += drawn;
    }
    board.hints = hintsLeft;
    board.lives = livesLeft;
  }
  return board;
}

function hint(card, kind, value) {
  const key = kind === "c" ? "colors" : "ranks";
  const touched = touches(card, kind, value);
  card[key] = touched ? [value] : card[key].filter((one) => one !== value);
  if (touched) card[kind === "c" ? "colorHinted" : "rankHinted"] = true;
}

function touches(card, kind, value) {
  return (kind === "c" ? colorOf(card) : Number(card.text[1]) - 1) === value;
}

const LETTERS = "RYGWB";
const colorOf = (card) => LETTERS.indexOf(card.text[0]);
const range = (count) => Array.from({ length: count }, (_, index) => index);

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const games = new Map(data.games.map((game) => [game.number, game]));
  const rows = [...find("list").children].map((item, index) => ({ item, link: item.querySelector("a"), index,
    number: data.games[index].number, score: Number(item.dataset.score), bad: Number(item.dataset.bad) }));
  const state = { game: data.games[0].number, turn: 0, hidden: false, timer: null };
  document.documentElement.classList.add("js");
  find("board").hidden = false;
  find("filters").hidden = false;
  if (matchMedia("(max-width: 1050px)").matches) find("picker").open = false;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const button = (text, label, act) => {
    const node = make("button", "", text);
    node.type = "button";
    node.title = label;
    node.setAttribute("aria-label", label);
    node.addEventListener("click", act);
    return node;
  };

  const controls = make("div", "controls");
  const slider = make("input");
  slider.type = "range";
  slider.min = 1;
  slider.setAttribute("aria-label", "turn");
  slider.addEventListener("input", () => go(state.game, Number(slider.value) - 1));
  const player = button("play", "play or pause (space)", play);
  const hider = button("hide", "hide the mover's own cards (h)", hide);
  controls.append(button("|◀", "first turn (home)", () => go(state.game, 0)),
    button("◀", "previous turn (left)", () => go(state.game, state.turn - 1)), player,
    button("▶", "next turn (right)", () => go(state.game, state.turn + 1)),
    button("▶|", "end (end)", () => go(state.game, Infinity)), hider, slider);
  const table = make("div");
  table.id = "table";
  const keys = make("p", "keys", "Under a card: the colours and ranks that hints leave possible; underlined: named by a hint.\n" +
    "←\u00a0→ turn · home end · space plays · ↑\u00a0↓ game · h hides the mover's own cards");
  find("board").append(controls, table, keys);

  for (const id of ["order", "bad"]) find(id).addEventListener("change", filter);

  function shownRows() {
    return [...find("list").children].filter((item) => !item.hidden).map((item) => rows.find((row) => row.item === item));
  }

  function filter() {
    const order = find("order").value, bad = find("bad").checked;
    const by = { file: (a, b) => a.index - b.index, worst: (a, b) => a.score - b.score || a.index - b.index,
      best: (a, b) => b.score - a.score || a.index - b.index }[order];
    for (const row of [...rows].sort(by)) {
      row.item.hidden = bad && !row.bad;
      find("list").append(row.item);
    }
    const shown = shownRows();
    find("count").textContent = `${shown.length} of ${rows.length} games`;
    if (shown.length && !shown.some((row) => row.number === state.game)) go(shown[0].number, 0);
  }

  function go(number, turn, keepAddress) {
    const game = games.get(number);
    if (!game) return;
    state.game = number;
    state.turn = Math.max(0, Math.min(turn, game.moves.length));
    if (state.turn >= game.moves.length && state.timer) play();
    draw(game);
    if (!keepAddress) history.replaceState(null, "", `#game=${number}&turn=${state.turn + 1}`);
  }

  function play() {
    if (state.timer) {
      clearInterval(state.timer);
      state.timer = null;
    } else {
      if (state.turn >= games.get(state.game).moves.length) go(state.game, 0);
      state.timer = setInterval(() => go(state.game, state.turn + 1), 1200);
    }
    player.textContent = state.timer ? "pause" : "play";
  }

  function hide() {
    state.hidden = !state.hidden;
    hider.setAttribute("aria-pressed", String(state.hidden));
    draw(games.get(state.game));
  }

  function draw(game) {
    const board = position(game, state.turn);
    const move = game.moves[state.turn];
    const mover = move ? move[0] : -1;
    const hands = make("div", `hands${game.players.length > 3 ? " many" : ""}${game.board[2] < 4 ? " few" : ""}`);
    hands.append(...game.players.map((name, seat) => handOf(game, board, seat, mover, move)));
    find("table").replaceChildren(statusOf(game, board, move), hands, discardsOf(board));
    slider.max = game.moves.length + 1;
    slider.value = state.turn + 1;
    for (const row of rows) {
      if (row.number === state.game) row.link.setAttribute("aria-current", "true");
      else row.link.removeAttribute("aria-current");
    }
    for (const section of document.querySelectorAll(".game.shown")) section.classList.remove("shown");
    const section = find(`g${state.game}`);
    section.classList.add("shown");
    for (const item of section.querySelectorAll("li.now")) item.classList.remove("now");
    const item = section.querySelectorAll("li")[state.turn];
    if (item) {
      item.classList.add("now");
      // A phone shows only this item, and hidden items are not counted.
      item.value = state.turn + 1;
      reveal(find("turns"), item);
    }
    reveal(find("games"), rows.find((row) => row.number === state.game).item);
  }

  // Scrolls inside the panel only; where the whole page scrolls, the board stays in sight.
  function reveal(box, item) {
    const inner = item.getBoundingClientRect(), outer = box.getBoundingClientRect();
    if (box.scrollHeight <= box.clientHeight) return;
    if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 40;
    else if (inner.bottom > outer.bottom) box.scrollTop += Math.min(inner.bottom - outer.bottom + 40, inner.top - outer.top);
  }

  function statusOf(game, board, move) {
    const panel = make("div", "panel");
    const line = make("div", "status");
    const left = game.deck.length / 2 - board.next;
    const points = board.stacks.reduce((sum, height) => sum + height, 0);
    const facts = [["game", game.number], ["turn", move ? `${state.turn + 1} of ${game.moves.length}` : "end"], ["points", points],
      ["lives", board.lives], ["hints", board.hints], ["deck", left || "empty"]];
    for (const [name, value] of facts) {
      const fact = make("span", "", `${name} `);
      fact.append(make("b", "", String(value)));
      line.append(fact);
    }
    const row = make("div", "row");
    board.stacks.forEach((height, color) => {
      const card = make("div", `card small ${height ? `c${color}` : "empty"}`, `${LETTERS[color]}${height}`);
      card.title = data.names[color];
      row.append(card);
    });
    panel.append(line, row);
    return panel;
  }

  function handOf(game, board, seat, mover, move) {
    const panel = make("div", `panel hand${seat === mover ? " mover" : ""}`);
    const label = make("p", "label");
    const name = make("bdi");
    name.append(make("b", "", game.players[seat]));
    label.append(name, seat === mover ? " · to move" : "");
    const row = make("div", "row");
    board.hands[seat].forEach((card, slot) => {
      const box = make("div", `slot${isTarget(move, seat, slot, card) ? " target" : ""}`);
      const unseen = state.hidden && seat === mover;
      const face = make("div", `card ${unseen ? "c9" : `c${colorOf(card)}`}`, unseen ? "?" : card.text);
      box.append(face, knownOf(game, card));
      row.append(box);
    });
    panel.append(label, row);
    return panel;
  }

  function isTarget(move, seat, slot, card) {
    if (!move) return false;
    const [mover, kind, where, value] = move;
    if (kind === "p" || kind === "d") return seat === mover && slot === where;
    return seat === where && touches(card, kind, value);
  }

  function knownOf(game, card) {
    const box = make("div", "known");
    const line = (all, possible, hinted) => {
      const row = make("div");
      all.forEach((text, index) => {
        const open = possible.includes(index);
        row.append(make(open && hinted ? "b" : "span", "", open ? text : "·"));
      });
      return row;
    };
    const [numColors, numRanks] = game.board;
    box.append(line([...LETTERS].slice(0, numColors), card.colors, card.colorHinted),
      line(range(numRanks).map((rank) => String(rank + 1)), card.ranks, card.rankHinted));
    box.title = "what hints leave possible; underlined: named by a hint";
    return box;
  }

  function discardsOf(board) {
    const panel = make("div", "panel");
    const row = make("div", "row");
    for (const card of board.discards) row.append(make("div", `card small c${colorOf(card)}`, card.text));
    if (!board.discards.length) row.append(make("span", "label", "none"));
    panel.append(make("p", "label", "discarded"), row);
    return panel;
  }

  function fromAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const number = Number(wanted.get("game") ?? (/^#g(\d+)$/.exec(location.hash) ?? [])[1] ?? NaN);
    const turn = Number(wanted.get("turn") ?? 1);
    go(games.has(number) ? number : state.game, Number.isInteger(turn) ? turn - 1 : 0, true);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT)$/.test(event.target.tagName)) return;
    // Space presses what has the focus.
    if (event.key === " " && /^(BUTTON|SUMMARY|A)$/.test(event.target.tagName)) return;
    const step = (by) => {
      const shown = shownRows(), at = shown.findIndex((row) => row.number === state.game);
      const next = shown[Math.max(0, Math.min(at + by, shown.length - 1))];
      if (next) go(next.number, 0);
    };
    const act = { ArrowLeft: () => go(state.game, state.turn - 1), ArrowRight: () => go(state.game, state.turn + 1),
      Home: () => go(state.game, 0), End: () => go(state.game, Infinity), " ": play, ArrowUp: () => step(-1),
      ArrowDown: () => step(1), h: hide }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  find("list").addEventListener("click", (event) => {
    const row = rows.find((one) => one.item.contains(event.target));
    if (!row || !event.target.closest("a")) return;
    event.preventDefault();
    if (matchMedia("(max-width: 760px)").matches) find("picker").open = false;
    go(row.number, 0);
  });
  find("turns").addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item && !String(getSelection())) go(state.game, [...item.parentElement.children].indexOf(item));
  });
  addEventListener("hashchange", fromAddress);
  fromAddress();
}

if (typeof document !== "undefined") start();
if (typeof module !== "undefined") module.exports = { position };
