// Highlighted code. The highlighter and its languages load after the page is shown.

const LANGUAGES = [
  ...["bash", "c", "cpp", "csharp", "css", "diff", "go", "ini", "java", "javascript", "json", "markdown"],
  ...["python", "rust", "sql", "typescript", "xml", "yaml"],
];
const LONGEST = 30_000;
let highlighter = null;

/** Load the highlighter; until then code is plain. Returns whether it was loaded now: a server that is gone has none. */
export async function loadHighlighter() {
  if (highlighter) return false;
  try {
    highlighter = await loaded();
    return true;
  } catch {
    return false;
  }
}

async function loaded() {
  const { default: core } = await import("./vendor/highlight.js");
  const modules = await Promise.all(LANGUAGES.map((name) => import(`./vendor/languages/${name}.js`)));
  LANGUAGES.forEach((name, place) => core.registerLanguage(name, modules[place].default));
  return core;
}

export function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (character) => names[character]);
}

/** Return code as HTML: marked up if its language is known, else escaped. The sanitiser still reads it. */
export function codeHtml(code, language) {
  if (!highlighter?.getLanguage(language) || code.length > LONGEST) return escaped(code);
  return highlighter.highlight(code, { language, ignoreIllegals: true }).value;
}
