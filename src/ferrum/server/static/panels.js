// The side panels: conversations at the left, settings and charts at the right. On narrow screens they cover the page.

import { byId } from "./dom.js";

const NARROW = window.matchMedia("(max-width: 60rem)");

/** A panel that a button opens and closes. On narrow screens it has the focus while it is open, and Escape closes it. */
export class SidePanel {
  constructor(panel, toggle, { onopen = () => {} } = {}) {
    this.panel = byId(panel);
    this.toggle = byId(toggle);
    this.onopen = onopen;
    this.toggle.addEventListener("click", () => this.set(!this.open));
    this.panel.querySelector(".close").addEventListener("click", () => this.set(false));
    NARROW.addEventListener("change", () => this.open && this.set(true, { focus: false }));
    this.panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && NARROW.matches) this.set(false);
    });
  }

  get open() {
    return !this.panel.hidden;
  }

  set(open, { focus = true } = {}) {
    this.panel.hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    byId("main").inert = open && NARROW.matches;
    byId("bar").inert = open && NARROW.matches;
    if (open) this.onopen();
    if (!focus) return;
    if (open) this.panel.querySelector(".close").focus();
    else this.toggle.focus();
  }

  /** Close it where it covers the page. */
  closeIfNarrow() {
    if (NARROW.matches && this.open) this.set(false, { focus: false });
  }
}

/** Tabs as the ARIA practices have them: arrow keys move, and the tab's panel is shown. */
export function tabs(list, onselect) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const select = (tab) => {
    for (const each of all) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      byId(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    list.closest(".panel").scrollTop = 0;
    onselect(tab.id);
  };
  for (const tab of all) tab.addEventListener("click", () => select(tab));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    select(next);
  });
}
