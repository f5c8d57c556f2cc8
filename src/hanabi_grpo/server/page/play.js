"use strict";

// The page of a person's game. It knows only what the server sends, which is only what the person's seat may know.
function start() {
  const find = (id) => document.getElementById(id);
  const session = { key: "", token: "", state: null, options: null, waiting: false };
  const STORE = "hanabi_grpo game";
  const RETRY_MILLISECONDS = 3000;

  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

  class Refused extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  async function ask(path, body) {
    const headers = { "content-type": "application/json" };
    if (session.key) headers.authorization = `Bearer ${session.key}`;
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), cache: "no-store" });
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(answer.status, content.detail || `The server responded with status ${answer.status}.`);
    return content;
  }

  function complain(text) {
    find("trouble").textContent = text;
    find("trouble").hidden = !text;
  }

  function show(...ids) {
    for (const id of ["door", "setup", "game"]) find(id).hidden = !ids.includes(id);
  }

  // Show an error; ask for a missing key, and offer a new game if the current one is gone.
  function failed(error) {
    if (!(error instanceof Refused)) {
      complain("The server does not respond. Check that it is still running.");
    } else if (error.status === 401) {
      complain(session.key ? "That is not this server's key." : "");
      session.key = "";
      show("door");
      find("key").focus();
    } else if (error.status === 404) {
      forget();
      complain(error.message);
      openSetup();
    } else {
      complain(error.message);
    }
  }

  function forget() {
    session.token = "";
    session.state = null;
    sessionStorage.removeItem(STORE);
  }

  function keep(token) {
    session.token = token;
    sessionStorage.setItem(STORE, token);
  }

  async function resume() {
    try {
      receive(await ask("state", { token: session.token }));
    } catch (error) {
      failed(error);
    }
  }

  // The form of a new game.

  async function openSetup() {
    try {
      session.options = await ask("options", {});
    } catch (error) {
      failed(error);
      return;
    }
    find("title").textContent = "";
    show("setup");
    const choice = find("choice");
    choice.replaceChildren();
    const groups = [["this server's games", true], ["other games", false]];
    for (const [label, isOfServer] of groups) {
      const group = make("optgroup");
      group.label = label;
      session.options.games.forEach((game, index) => {
        if (game.is_of_server !== isOfServer) return;
        const name = game.env === game.preset ? game.env : `${game.env}, ${game.preset}`;
        const option = make("option", "", `${name} (${count(game.roles.length, "player")})`);
        option.value = index;
        group.append(option);
      });
      if (group.children.length) choice.append(group);
    }
    fillSeats();
    choice.focus();
  }

  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  function fillSeats() {
    const game = session.options.games[Number(find("choice").value)];
    const seat = find("seat");
    seat.replaceChildren(...game.roles.map((role, index) => {
      const option = make("option", "", `player_${index}${role === "player" ? "" : `, ${role}`}${index === 0 ? ", moves first" : ""}`);
      option.value = index;
      return option;
    }));
    const partner = find("partner");
    partner.replaceChildren();
    for (const [label, names] of [["this server's models", session.options.models], ["scripts", game.scripts]]) {
      const group = make("optgroup");
      group.label = label;
      group.append(...names.map((name) => make("option", "", name)));
      partner.append(group);
    }
    // A tiny model knows only the words of the server's own games.
    if (!game.is_of_server && game.scripts.length) partner.value = game.scripts[0];
    partner.closest("p").hidden = game.roles.length === 1;
  }

  // Begin a game; returns whether the server has accepted it.
  async function begin(path, wanted) {
    complain("");
    try {
      const answer = await ask(path, wanted);
      keep(answer.token);
      receive(answer.state);
      return true;
    } catch (error) {
      failed(error);
      return false;
    }
  }

  find("choice").addEventListener("change", fillSeats);
  find("setup").addEventListener("submit", (event) => {
    event.preventDefault();
    const game = session.options.games[Number(find("choice").value)];
    const seat = Number(find("seat").value);
    const seats = game.roles.map((_, index) => (index === seat ? "human" : find("partner").value));
    const wanted = { env: game.env, env_config: game.env_config, rules: game.rules, seats };
    const seed = find("seed").value.trim();
    if (seed) wanted.seed = Number(seed);
    begin("games", wanted);
  });
  find("door").addEventListener("submit", (event) => {
    event.preventDefault();
    session.key = find("key").value;
    find("key").value = "";
    complain("");
    if (session.token) resume();
    else openSetup();
  });

  // A game.

  function receive(state) {
    session.state = state;
    draw(state);
    if (state.status === "waiting") wait();
  }

  async function wait() {
    if (session.waiting) return;
    session.waiting = true;
    const token = session.token;
    let state = null;
    while (!state && session.token === token) {
      try {
        const answer = await ask("state", { token, after: session.state.number });
        complain("");
        if (answer.number !== session.state.number) state = answer;
      } catch (error) {
        failed(error);
        if (error instanceof Refused && error.status < 500) break;
        await pause(RETRY_MILLISECONDS);
      }
    }
    session.waiting = false;
    if (state && session.token === token) receive(state);
  }

  async function send(move) {
    complain("");
    // Disabled elements lose the focus.
    const focused = document.activeElement;
    setIdle(true);
    try {
      const state = await ask("move", { token: session.token, number: session.state.number, move });
      find("words").value = "";
      receive(state);
    } catch (error) {
      failed(error);
      if (error instanceof Refused && error.status === 409) resume();
      else if (session.state) setIdle(session.state.status !== "your_turn");
      focused.focus();
      if (focused === find("words")) focused.select();
    }
  }

  function setIdle(isIdle) {
    find("move").classList.toggle("idle", isIdle);
    for (const node of find("move").querySelectorAll("button, input")) node.disabled = isIdle;
  }

  function draw(state) {
    show("game");
    const others = state.players.filter((player) => player.who !== "you").map((player) => `${player.name} is ${player.who}`);
    find("title").textContent = [state.env === state.preset ? state.env : `${state.env}, ${state.preset}`, `you are ${state.you}`, ...others].join(" · ");
    document.title = state.status === "your_turn" ? "Your turn – Play" : "Play";
    const texts = { your_turn: "Your turn.", waiting: "Waiting for the others…", over: `The game is over. ${state.outcome}`, failed: `The game has ended: ${state.problem}` };
    find("status").textContent = texts[state.status];
    const scene = state.scene;
    find("news").replaceChildren(...(scene ? scene.news : []).map((sentence) => make("li", "", sentence)));
    find("rules").textContent = state.rules;
    find("legend").textContent = scene ? scene.legend : "";
    find("help").open = find("help").open || state.number === 1;
    const isDrawn = scene && scene.drawn && scene.drawn.kind === "hanabi";
    // The drawn table has a legend of its own.
    find("legend").hidden = isDrawn;
    find("table").hidden = !scene;
    if (isDrawn) find("table").replaceChildren(...hanabi(scene.drawn));
    else if (scene) find("table").replaceChildren(make("pre", "", scene.table));
    const isTurn = state.status === "your_turn";
    const isEnd = state.status === "over" || state.status === "failed";
    find("move").hidden = isEnd;
    drawChoices(isTurn ? scene : null);
    setIdle(!isTurn);
    find("again").hidden = !isEnd;
    find("save").hidden = state.status !== "over";
    find("leave").textContent = isEnd ? "Another game" : "Leave this game";
    // Focusing would open the keyboard of a phone.
    if (isTurn && !matchMedia("(pointer: coarse)").matches) find("words").focus();
    else if (isEnd) find("status").focus();
  }

  function drawChoices(scene) {
    const groups = new Map();
    (scene && scene.choices ? scene.choices : []).forEach((choice, index) => {
      if (!groups.has(choice.group)) {
        const group = make("fieldset", "group");
        group.append(make("legend", choice.group ? "" : "sr", choice.group || "your moves"));
        groups.set(choice.group, group);
      }
      const button = make("button", "", choice.label);
      button.type = "button";
      button.dataset.reply = choice.reply;
      if (choice.group) button.setAttribute("aria-label", `${choice.group} ${choice.label}`);
      if (scene.numbered) button.prepend(make("span", "number", `${index + 1} `));
      button.addEventListener("click", () => send(choice.reply));
      groups.get(choice.group).append(button);
    });
    // While others move, the buttons stay in place.
    if (scene) find("choices").replaceChildren(...groups.values());
  }

  // Hanabi's table.

  function hanabi(board) {
    const facts = make("ul", "facts");
    for (const [name, value] of [["Points", `${board.points} of ${board.max_points}`], ["Lives", `${"●".repeat(board.lives)}${"○".repeat(board.max_lives - board.lives)} ${board.lives}`],
      ["Hints", `${"●".repeat(board.hints)}${"○".repeat(board.max_hints - board.hints)} ${board.hints}`]]) {
      const fact = make("li", "", `${name} `);
      fact.append(make("b", "", value));
      facts.append(fact);
    }
    facts.append(make("li", "", board.deck));
    const fireworks = make("ul", "row small");
    fireworks.setAttribute("aria-label", "fireworks");
    board.fireworks.forEach((height, color) => {
      const item = make("li");
      item.append(tile(height ? `c${color}` : "empty", `${board.letters[color]}${height || ""}`, `${board.colors[color]} ${height || "not begun"}`));
      fireworks.append(item);
    });
    const discards = make("ul", "row small");
    discards.setAttribute("aria-label", "discarded");
    for (const card of board.discards) {
      const item = make("li");
      item.append(tile(`c${board.letters.indexOf(card[0])}`, card, words(board, card)));
      discards.append(item);
    }
    const parts = [facts, label("Fireworks"), fireworks];
    for (const hand of board.hands) parts.push(...handOf(board, hand));
    parts.push(label(board.discards.length ? "Discarded" : "Discarded: nothing"), discards);
    parts.push(make("p", "key", "Below each card: the colours and ranks still possible after all hints; underlined: named by a hint. A frame marks the cards that the latest hint to you named."));
    return parts;
  }

  const words = (board, card) => `${board.colors[board.letters.indexOf(card[0])]} ${card[1]}`;

  function label(text, strong) {
    const line = make("p", "label");
    if (strong) line.append(make("b", "", strong), " ");
    line.append(text);
    return line;
  }

  function tile(className, text, spoken) {
    const box = make("div");
    const face = make("div", `card ${className}`, text);
    face.setAttribute("aria-hidden", "true");
    box.append(face, make("span", "sr", spoken));
    return box;
  }

  function handOf(board, hand) {
    const row = make("ul", "row");
    row.setAttribute("aria-label", hand.is_you ? "your hand" : `hand of ${hand.player}`);
    hand.cards.forEach((card, slot) => {
      const isTouched = hand.is_you && board.touched.includes(slot);
      const item = make("li", `slot${isTouched ? " touched" : ""}`);
      const colors = card.colors.map((color) => board.colors[color]).join(" or ");
      const ranks = card.ranks.map((rank) => rank + 1).join(" or ");
      const what = card.card ? words(board, card.card) : "your card";
      const face = tile(card.card ? `c${board.letters.indexOf(card.card[0])}` : "c9", card.card || "?",
        `slot ${slot}: ${what}; by hints ${colors}, rank ${ranks}`);
      item.append(face, knownOf(board, card), make("div", "number", `slot ${slot}`));
      row.append(item);
    });
    const who = hand.is_you ? "your hand, which you cannot see" : "sees your cards, but not these";
    return [label(who, hand.is_you ? "You:" : `${hand.player}:`), row];
  }

  function knownOf(board, card) {
    const box = make("div", "known");
    box.setAttribute("aria-hidden", "true");
    const line = (texts, possible, isHinted) => {
      const row = make("div");
      texts.forEach((text, index) => {
        const isOpen = possible.includes(index);
        row.append(make(isOpen ? (isHinted ? "b" : "span") : "i", "", isOpen ? text : "·"));
      });
      return row;
    };
    const ranks = Array.from({ length: board.num_ranks }, (_, rank) => String(rank + 1));
    box.append(line([...board.letters], card.colors, card.color_hinted), line(ranks, card.ranks, card.rank_hinted));
    return box;
  }

  find("move").addEventListener("submit", (event) => {
    event.preventDefault();
    const move = find("words").value.trim();
    if (move) send(move);
  });
  find("again").addEventListener("click", async () => {
    const token = session.token;
    const button = find("again");
    button.disabled = true;
    const hasBegun = await begin("again", { token });
    button.disabled = false;
    // Until then the finished game stays, with its record.
    if (hasBegun) ask("leave", { token }).catch(() => {});
    else button.focus();
  });
  find("leave").addEventListener("click", async () => {
    complain("");
    await leave();
    openSetup();
  });
  find("save").addEventListener("click", async () => {
    try {
      const record = await ask("record", { token: session.token });
      const link = make("a");
      link.href = URL.createObjectURL(new Blob([`${JSON.stringify(record)}\n`], { type: "application/jsonl" }));
      link.download = `${record.preset}-${record.seed}.jsonl`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), RETRY_MILLISECONDS);
    } catch (error) {
      failed(error);
    }
  });

  async function leave() {
    const token = session.token;
    forget();
    if (token) await ask("leave", { token }).catch(() => {});
  }

  const given = location.hash.slice(1);
  if (given) history.replaceState(null, "", location.pathname);
  if (given) keep(given);
  session.token = given || sessionStorage.getItem(STORE) || "";
  if (session.token) resume();
  else openSetup();
}

start();
