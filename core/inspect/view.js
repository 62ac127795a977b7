"use strict";
// Shows recorded rollouts token by token. Whatever a model or a tool wrote enters the page through textContent only.

const TINTS = {
  0: ["none", "no tint"],
  1: ["mask", "green: sampled and trained · grey: sampled, not trained · plain: prompt"],
  2: ["log-prob", "the redder, the less likely the token was: full at −5"],
  3: ["ratio", "trainer's probability over the engine's: blue above 1, orange below, full at a factor of 1.2"],
  4: ["advantage", "green above 0, red below; full at the largest of this page"],
  5: ["weights", "a colour for each weight version"],
};
const HELP = [
  ["j k", "next and previous rollout"], ["n p", "next and previous turn"], ["→ ←", "next and previous sampled token"],
  ["0 … 5", "choose the tint"], ["g", "the group side by side"], ["e", "open or close the prompts"],
  ["/", "search; Enter goes back to the keys"], ["Esc", "clear the search"], ["?", "this help"],
];

let data, shown = [], place = 0, tint = 1, together = false, prompts = false, query = "", turnPlace = 0, cursor = null;

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const piece = (id) => (id < 0 ? `‹${(-id).toLocaleString("en")} tokens left out›` : data.pieces[id] ?? `⟨${id}⟩`);
const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(3);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// An id below 0 stands for so many ids that were left out; it counts as that many.
function take(ids, length) {
  const taken = [];
  for (const id of ids) {
    if (length <= 0) break;
    const count = id < 0 ? Math.min(-id, length) : 1;
    taken.push(id < 0 ? -count : id);
    length -= count;
  }
  return taken;
}

function promptOf(rollout, index) {
  const turn = rollout.turns[index];
  if (!turn.base) return turn.prompt;
  const [earlier, length] = turn.base;
  return [...take([...promptOf(rollout, earlier), ...rollout.turns[earlier].sampled], length), ...turn.prompt];
}

function wordsOf(rollout) {
  rollout.words ??= [rollout.task, rollout.question, ...rollout.turns.flatMap((turn) =>
    [turn.prompt.map(piece).join(""), turn.sampled.map(piece).join("")])].join("\n").toLowerCase();
  return rollout.words;
}

// The weights that sampled token `i`: they may have changed in the middle of a turn.
function versionOf(turn, i) {
  for (const [version, count] of turn.earlier_versions) {
    if (i < count) return version;
    i -= count;
  }
  return turn.weight_version;
}

function background(rollout, turn, i) {
  const fade = (color, share) => `color-mix(in srgb, var(--${color}) ${Math.round(70 * Math.min(1, share))}%, transparent)`;
  if (tint === 1) return turn.trained ? fade("good", 0.5) : fade("muted", 0.4);
  const logprob = turn.logprobs[i];
  if (tint === 2) return logprob === null ? fade("c3", 1) : fade("bad", -logprob / 5);
  if (tint === 3) {
    const trainer = turn.trainer_logprobs?.[i];
    if (trainer == null || logprob === null) return "";
    return fade(trainer > logprob ? "c0" : "c1", Math.abs(trainer - logprob) / Math.log(1.2));
  }
  const advantage = turn.trained ? advantageOf(turn, i) : null;
  if (tint === 4 && advantage)
    return fade(advantage > 0 ? "good" : "bad", Math.abs(advantage) / data.largest_advantage);
  if (tint === 5) return fade(`c${data.versions.indexOf(versionOf(turn, i)) % 8}`, 0.6);
  return "";
}

// The advantage of a sampled token: a turn has one for all of them, or one for each.
function advantageOf(turn, i) {
  return Array.isArray(turn.advantage) ? turn.advantage[i] : turn.advantage;
}

// Fills `box` with one element a token; `turn` is null for a prompt, whose tokens have an id and nothing else.
function fill(box, rollout, ids, turn, describe) {
  const elements = ids.map((id, i) => {
    const element = make("span", "token", piece(id));
    if (turn) element.style.background = background(rollout, turn, i);
    element.describe = () => describe(id, i);
    return element;
  });
  box.replaceChildren(...elements);
  if (query) highlight(elements);
}

function highlight(elements) {
  const text = elements.map((element) => element.textContent).join("").toLowerCase();
  let found = text.indexOf(query), start = 0;
  for (const element of elements) {
    const end = start + element.textContent.length;
    while (found >= 0 && found + query.length <= start) found = text.indexOf(query, found + 1);
    if (found >= 0 && found < end) element.classList.add("found");
    start = end;
  }
}

function describePrompt(id, i) {
  return id < 0 ? `prompt · ${piece(id)}` : `prompt · id ${id} · ${JSON.stringify(piece(id))}`;
}

function describeSampled(rollout, turn) {
  return (id, i) => {
    const logprob = turn.logprobs[i], trainer = turn.trainer_logprobs?.[i];
    const facts = [`token ${i + 1} of ${turn.sampled.length}`, `id ${id}`, JSON.stringify(piece(id))];
    facts.push(logprob === null ? "log-prob not finite" : `log-prob ${logprob.toFixed(4)} (p ${Math.exp(logprob).toFixed(4)})`);
    if (trainer != null) facts.push(`trainer ${trainer.toFixed(4)} (ratio ${Math.exp(trainer - logprob).toFixed(4)})`);
    const advantage = turn.trained ? advantageOf(turn, i) : null;
    if (advantage !== null) facts.push(`advantage ${signed(advantage)}`);
    facts.push(`weights ${versionOf(turn, i)}`, turn.trained ? "trained" : "not trained");
    return facts.join(" · ");
  };
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// The places of turns as numbers: [0, 1, 2, 6] is "1–3, 7".
function spansOf(turns) {
  const spans = [];
  for (const turn of turns) {
    if (spans.length && spans[spans.length - 1][1] === turn - 1) spans[spans.length - 1][1] = turn;
    else spans.push([turn, turn]);
  }
  return spans.map(([first, last]) => (first === last ? `${first + 1}` : `${first + 1}–${last + 1}`)).join(", ");
}

const segmentOf = (rollout, index) => rollout.segments.findIndex((segment) => segment.turns.includes(index));

// The conversations of a rollout as a tree: a segment stands below the one that it begins like.
function renderSegments(rollout, article) {
  const fold = make("details", "segments"), depths = [];
  fold.append(make("summary", "", plural(rollout.segments.length, "segment")));
  fold.open = rollout.segments.some((segment) => segment.turns.length > 1);
  rollout.segments.forEach((segment, i) => {
    const [base, shared] = segment.base ?? [];
    depths.push(base === undefined ? 0 : depths[segmentOf(rollout, base)] + 1);
    const roles = [...new Set(segment.turns.map((turn) => rollout.turns[turn].role))].join(", ");
    const button = make("button", "", `segment ${i + 1} · turn ${spansOf(segment.turns)} · ${roles}`);
    if (base !== undefined) button.append(make("small", "", ` begins with ${plural(shared, "token")} of turn ${base + 1}`));
    if (segment.labels.length) button.append(make("small", "", ` ${segment.labels.join(", ")}`));
    button.style.marginLeft = `${24 * Math.min(depths[i], 12)}px`;
    button.addEventListener("click", () => article.querySelectorAll(".turn")[segment.turns[0]].scrollIntoView({ block: "start" }));
    fold.append(button);
  });
  return fold;
}

// When each turn was sampled, and what its conversation waited for before: tools, and other conversations.
function renderTimeline(rollout) {
  const end = Math.max(...rollout.turns.map((turn) => turn.seconds?.[1] ?? 0));
  const fold = make("details", "timeline");
  fold.append(make("summary", "", `timeline, ${end.toFixed(2)} s`));
  const draw = (kind, label, [from, to]) => {
    const row = make("div"), bar = make("i", kind);
    bar.style.marginLeft = `${(100 * from) / end}%`;
    bar.style.width = `${(100 * (to - from)) / end}%`;
    row.append(make("small", "", `${label} · ${from.toFixed(2)}–${to.toFixed(2)} s`), bar);
    fold.append(row);
  };
  for (const { turns } of rollout.segments) {
    turns.forEach((place, i) => {
      const turn = rollout.turns[place], before = rollout.turns[turns[i - 1]];
      if (!turn.seconds) return;
      if (before?.seconds) draw("wait", `between ${turns[i - 1] + 1} and ${place + 1}: tools`, [before.seconds[1], turn.seconds[0]]);
      draw("sample", `turn ${place + 1}, ${turn.role}`, turn.seconds);
    });
  }
  return fold;
}

function renderCalls(rollout) {
  const fold = make("details"), seconds = rollout.calls.reduce((sum, call) => sum + (call.seconds ?? 0), 0);
  fold.append(make("summary", "", `${plural(rollout.calls.length, "call")} of tools${seconds ? `, ${seconds.toFixed(2)} s` : ""}`));
  for (const call of rollout.calls) {
    const inner = make("details", "call");
    inner.append(make("summary", "", call.seconds === null ? call.name : `${call.name} · ${call.seconds.toFixed(3)} s`), make("pre", "", call.fields));
    fold.append(inner);
  }
  return fold;
}

function renderTurn(rollout, index) {
  const turn = rollout.turns[index];
  const section = make("section", turn.trained ? "turn trained" : "turn");
  const header = make("header");
  const finite = turn.logprobs.filter((value) => value !== null);
  const row = rollout.rows.findIndex((row) => row.turns.includes(index));
  const facts = [`${turn.sampled.length} tokens`, turn.finish_reason, `weights ${turn.weight_version}`];
  if (finite.length) facts.push(`mean log-prob ${mean(finite).toFixed(3)}`);
  facts.push(`segment ${segmentOf(rollout, index) + 1}`, row < 0 ? "in no row" : `row ${row + 1}`);
  header.append(make("b", "", `turn ${index + 1}`), make("span", "", turn.role),
    make("span", turn.trained ? "badge accent" : "badge plain", turn.trained ? "trained" : "frozen"),
    make("span", "muted", facts.join(" · ")));
  const fold = make("details", "prompt"), ids = promptOf(rollout, index), box = make("div", "tokens");
  const count = ids.reduce((sum, id) => sum + (id < 0 ? -id : 1), 0);
  const shared = turn.base ? `, the first ${turn.base[1]} as in turn ${turn.base[0] + 1}` : "";
  fold.append(make("summary", "", `prompt, ${count.toLocaleString("en")} tokens${shared}`), box);
  fold.addEventListener("toggle", () => fold.open && !box.firstChild && fill(box, rollout, ids, null, describePrompt));
  fold.open = prompts;
  const sampled = make("div", "tokens sampled");
  fill(sampled, rollout, turn.sampled, turn, describeSampled(rollout, turn));
  section.append(header, fold, sampled);
  return section;
}

function renderRollout(rollout) {
  const article = make("article", "rollout");
  const title = make("h2", "", rollout.task);
  const badges = make("p", "badges");
  if (rollout.doubt) badges.append(make("span", "badge bad", rollout.doubt));
  const tone = rollout.reward === null ? "plain" : rollout.reward > 0.5 ? "good" : "bad";
  badges.append(make("span", `badge ${tone}`, rollout.reward === null ? "no reward" : `reward ${rollout.reward.toFixed(3)}`),
    make("span", "badge plain", rollout.advantage === null ? (rollout.rows.length ? "advantages by turn" : "no row") : `advantage ${signed(rollout.advantage)}`),
    make("span", rollout.status === "completed" ? "badge good" : "badge bad", rollout.failure ?? rollout.status),
    make("span", "badge plain", `seed ${rollout.seed} · ${rollout.stage} · step ${rollout.step} · group ${rollout.group + 1}`));
  const facts = make("dl", "facts");
  const scaleOf = (row) => (row.loss_scale === null ? "" : `, loss scale ${row.loss_scale.toPrecision(3)}`);
  const rows = rollout.rows.map((row, i) => `${i + 1}: turn ${spansOf(row.turns)}, ${row.length} tokens${scaleOf(row)}`);
  const answers = rollout.answers.join(" | ");
  for (const [name, value] of [["question", rollout.question], ["answers", answers], ["rows", rows.join(" · ")]])
    if (value) facts.append(make("dt", "", name), make("dd", "", value));
  article.append(title, badges, facts, renderSegments(rollout, article));
  if (rollout.turns.some((turn) => turn.seconds)) article.append(renderTimeline(rollout));
  article.append(...rollout.turns.map((_, index) => renderTurn(rollout, index)));
  if (rollout.calls.length) article.append(renderCalls(rollout));
  for (const name of ["metrics", "log"]) {
    if (!rollout[name]) continue;
    const fold = make("details");
    fold.append(make("summary", "", name), make("pre", "", rollout[name]));
    article.append(fold);
  }
  return article;
}

const sameGroup = (a, b) => a.seed === b.seed && a.stage === b.stage && a.step === b.step && a.group === b.group;

function render() {
  const current = shown[place], main = document.getElementById("main");
  turnPlace = 0;
  cursor = null;
  main.className = together ? "together" : "";
  const chosen = current === undefined ? [] : together ? shown.filter((other) => sameGroup(other, current)) : [current];
  main.replaceChildren(...chosen.map(renderRollout));
  if (!chosen.length) main.append(make("p", "note", query ? "No rollout has this text." : "There is no rollout to show."));
  document.querySelectorAll("#list button").forEach((button, i) => button.classList.toggle("current", i === place));
  document.querySelector("#list .current")?.scrollIntoView({ block: "nearest" });
  main.scrollTop = 0;
  const [name, meaning] = TINTS[tint];
  document.getElementById("legend").textContent = `tint ${tint}, ${name}: ${meaning}`;
  document.querySelectorAll("#tints button").forEach((button, i) => button.classList.toggle("current", i === tint));
}

function renderList() {
  shown = query ? data.rollouts.filter((rollout) => wordsOf(rollout).includes(query)) : data.rollouts;
  place = Math.max(0, Math.min(place, shown.length - 1));
  const entries = [];
  shown.forEach((rollout, i) => {
    if (!i || !sameGroup(rollout, shown[i - 1]))
      entries.push(make("h3", "", `${rollout.task} · ${rollout.stage} ${rollout.step} · seed ${rollout.seed}`));
    const button = make("button", "", rollout.reward === null ? "–" : rollout.reward.toFixed(2));
    const more = rollout.advantage === null ? rollout.failure ?? "" : signed(rollout.advantage);
    button.append(make("small", "", [more, plural(rollout.turns.length, "turn")].filter(Boolean).join(" · ")));
    button.addEventListener("click", () => { place = i; render(); });
    entries.push(button);
  });
  document.getElementById("list").replaceChildren(...entries);
  document.getElementById("count").textContent = `${shown.length} of ${data.rollouts.length} rollouts` +
    (data.left_out ? `, and ${data.left_out} more that are not on this page` : "");
  render();
}

function setTint(number) {
  tint = number;
  render();
}

function showToken(element) {
  cursor?.classList.remove("cursor");
  cursor = element;
  cursor.classList.add("cursor");
  document.getElementById("status").textContent = element.describe();
}

function moveCursor(by) {
  const tokens = [...document.querySelectorAll("#main .sampled .token")];
  if (!tokens.length) return;
  const at = tokens.indexOf(cursor);
  const next = tokens[Math.max(0, Math.min(tokens.length - 1, at < 0 ? 0 : at + by))];
  showToken(next);
  next.scrollIntoView({ block: "nearest" });
}

function moveTurn(by) {
  const turns = document.querySelectorAll("#main .turn");
  turnPlace = Math.max(0, Math.min(turns.length - 1, turnPlace + by));
  turns[turnPlace]?.scrollIntoView({ block: "start" });
}

function move(by) {
  place = Math.max(0, Math.min(shown.length - 1, place + by));
  render();
}

const KEYS = {
  j: () => move(1), k: () => move(-1), n: () => moveTurn(1), p: () => moveTurn(-1),
  ArrowRight: () => moveCursor(1), ArrowLeft: () => moveCursor(-1),
  g: () => { together = !together; render(); },
  e: () => { prompts = !prompts; render(); },
  "/": () => document.getElementById("search").focus(),
  "?": () => { const help = document.getElementById("help"); help.hidden = !help.hidden; },
  Escape: () => search(""),
};

function search(text) {
  document.getElementById("search").value = text;
  query = text.toLowerCase();
  renderList();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.id === "search";
  if (typing && (event.key === "Enter" || event.key === "Escape")) event.target.blur();
  if (typing && event.key !== "Escape") return;
  const act = event.key in TINTS ? () => setTint(Number(event.key)) : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

async function start() {
  data = await unpack(document.getElementById("data").textContent);
  document.getElementById("tints").append(...Object.entries(TINTS).map(([key, [name]]) => {
    const button = make("button", "", `${key} ${name}`);
    button.addEventListener("click", () => setTint(Number(key)));
    return button;
  }));
  document.getElementById("help").append(...HELP.flatMap(([keys, text]) => [make("dt", "", keys), make("dd", "", text)]));
  document.getElementById("search").addEventListener("input", (event) => {
    query = event.target.value.toLowerCase();
    renderList();
  });
  document.getElementById("main").addEventListener("mouseover", (event) => event.target.describe && showToken(event.target));
  document.addEventListener("keydown", onKey);
  renderList();
}

start().catch((error) => { document.getElementById("status").textContent = `This page cannot be shown: ${error}`; });
