// Runs the script of a viewer page on the least document that it needs, presses keys, and prints what is shown as JSON.
"use strict";
const fs = require("fs");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], listeners: {}, style: {}, className: "", text: "" });
    this.classList = {
      add: (name) => { this.className += ` ${name}`; },
      remove: (name) => { this.className = this.className.replace(` ${name}`, ""); },
      toggle: (name, on) => { this.classList.remove(name); if (on) this.classList.add(name); },
    };
  }
  set textContent(text) { this.text = String(text); this.children = []; }
  get textContent() { return this.children.length ? this.children.map((child) => child.textContent).join("") : this.text; }
  set open(value) { this.isOpen = value; if (value) this.listeners.toggle?.(); }
  get open() { return this.isOpen; }
  get firstChild() { return this.children[0]; }
  append(...children) { for (const child of children) { child.parent = this; this.children.push(child); } }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  addEventListener(name, act) { this.listeners[name] = act; }
  scrollIntoView() {}
  focus() {}
  find(wanted) { return this.children.flatMap((child) => [...(wanted(child) ? [child] : []), ...child.find(wanted)]); }
}

const page = fs.readFileSync(process.argv[2], "utf8");
const ids = {};
for (const id of ["search", "count", "tints", "legend", "help", "list", "main", "status", "data"]) ids[id] = new Element("div");
ids.data.textContent = page.match(/id="data">([^<]*)</)[1];
const queries = {
  "#list button": () => ids.list.find((element) => element.tag === "button"),
  "#tints button": () => ids.tints.find((element) => element.tag === "button"),
  "#main .turn": () => ids.main.find((element) => /^turn/.test(element.className)),
  "#main .sampled .token": () => ids.main.find((e) => /^token\b(?!s)/.test(e.className) && /sampled/.test(e.parent.className)),
  "#list .current": () => queries["#list button"]().filter((element) => / current/.test(element.className)),
};
const listeners = {};
global.document = {
  createElement: (tag) => new Element(tag),
  getElementById: (id) => ids[id],
  querySelectorAll: (query) => queries[query](),
  querySelector: (query) => queries[query]()[0],
  addEventListener: (name, act) => { listeners[name] = act; },
};

const press = (key) => listeners.keydown({ key, target: {}, preventDefault() {} });
const search = (text) => ids.search.listeners.input({ target: { value: text } });

(0, eval)(page.match(/<script>([\s\S]*)<\/script>/)[1]);
const drive = () => {
  if (!ids.count.textContent && !ids.status.textContent) { setTimeout(drive, 10); return; }  // it is still unpacking
  const seen = { count: ids.count.textContent, tints: [] };
  press("e");
  seen.first = ids.main.textContent;
  press("ArrowRight");
  seen.status = ids.status.textContent;
  for (const key of "012345") { press(key); seen.tints.push(ids.legend.textContent); }
  press("j");
  seen.second = ids.main.textContent;
  for (const key of ["n", "p", "?", "?", "/", "k"]) press(key);
  press("g");
  seen.together = ids.main.children.length;
  press("g");
  search("willow");
  seen.found = ids.count.textContent;
  press("e");
  seen.foundCount = ids.main.find((element) => / found/.test(element.className)).length;
  press("Escape");
  console.log(JSON.stringify(seen));
};
drive();
