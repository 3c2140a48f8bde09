// Images of a message: files become data URLs within the server's limits, thumbnails, and a full view.

import { button, byId, el, say } from "./dom.js";

const NAMES = { "image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WebP", "image/gif": "GIF", "image/bmp": "BMP" };
const MEGA = 1_000_000;

/** Return whether a value is an image of a turn: `{name, url, width, height}` with a data URL of a known type. */
export function isImage(value) {
  const { name, url, width, height } = value ?? {};
  const type = /^data:(image\/\w+);base64,[A-Za-z0-9+/=]+$/.exec(url)?.[1];
  const sized = [width, height].every((side) => Number.isInteger(side) && side >= 0);
  return typeof name === "string" && typeof url === "string" && Object.hasOwn(NAMES, type) && sized;
}

/** Read a file as an image. Throws an Error that says what is wrong and what to do. */
async function imageOf(file, limits) {
  const name = file.name || "pasted image";
  if (!limits.types.includes(file.type)) {
    throw new Error(`"${name}" is no image that the model reads. Use ${limits.types.map((type) => NAMES[type]).join(", ")}.`);
  }
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`"${name}" cannot be read: ${reader.error.message}`));
    reader.readAsDataURL(file);
  });
  const shown = new Image();
  const loaded = new Promise((resolve, reject) => Object.assign(shown, { onload: resolve, onerror: reject }));
  shown.src = url;
  await loaded.catch(() => {
    throw new Error(`"${name}" is damaged, or it is no ${NAMES[file.type]} file. Save it again, as PNG for example.`);
  });
  const { naturalWidth: width, naturalHeight: height } = shown;
  if (width * height > limits.pixels) {
    const most = Math.floor(limits.pixels / MEGA);
    throw new Error(`"${name}" has ${width} x ${height} pixels, more than ${most} megapixels. Make it smaller first.`);
  }
  return { name, url, width, height };
}

/** Return why a request cannot have all these images, or null. */
export function faultOf(images, { limits, bytes }) {
  const pixels = images.reduce((sum, { width, height }) => sum + width * height, 0);
  const size = images.reduce((sum, { url }) => sum + url.length, 0);
  const next = "Remove an image, or start a new conversation.";
  if (images.length > limits.images) {
    return `The conversation would have ${images.length} images, more than the ${limits.images} of a request. ${next}`;
  }
  if (pixels > limits.total_pixels) {
    const [has, most] = [pixels, limits.total_pixels].map((count) => Math.floor(count / MEGA));
    return `The images of the conversation would have ${has} megapixels, more than the ${most} of a request. ${next}`;
  }
  if (size > bytes) {
    const [has, most] = [size, bytes].map((count) => (count / MEGA).toFixed(1));
    return `The images of the conversation would take ${has} MB, more than the ${most} MB of a request. ${next}`;
  }
  return null;
}

/** Return images as buttons that show them whole. */
export function thumbnails(images) {
  return images.map((image) => {
    const open = () => showWhole(image);
    const label = `Show ${image.name} whole`;
    return el(
      "button",
      { type: "button", class: "shot", "aria-label": label, title: label, onclick: open },
      el("img", { src: image.url, alt: "" }),
    );
  });
}

function showWhole({ name, url, width, height }) {
  const dialog = byId("whole");
  const close = button("Close image", "close", () => dialog.close());
  const title = el("h2", { id: "whole-title" }, `${name}, ${width} x ${height}`);
  dialog.replaceChildren(el("div", { class: "panel-head" }, title, close), el("img", { src: url, alt: name }));
  dialog.showModal();
}

/** The images of the message that is being written: chosen, pasted or dropped. */
export class Attached {
  /**
   * @param composer has `warn(text)`, `changed()` and the box
   * @param context returns `{limits, bytes, before}`: limits of the server, and images that the conversation has; null
   *   for a model that reads none
   */
  constructor(composer, context) {
    Object.assign(this, { composer, context, images: [], busy: 0, reading: Promise.resolve() });
    this.list = byId("attached");
    this.button = byId("attach");
    const input = byId("attach-file");
    this.button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.take([...input.files]);
      input.value = ""; // the same file can be chosen again
    });
    byId("prompt").addEventListener("paste", (event) => {
      // What is copied from a sheet or a document is a text with a picture of it.
      if (!event.clipboardData.getData("text/plain")) this.receive(event, event.clipboardData);
    });
    const main = byId("main");
    const over = (on) => byId("composer").classList.toggle("dropping", on);
    main.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault(); // else the browser opens the file
      over(Boolean(this.context()));
    });
    main.addEventListener("dragleave", (event) => main.contains(event.relatedTarget) || over(false));
    main.addEventListener("drop", (event) => {
      over(false);
      this.receive(event, event.dataTransfer);
    });
  }

  /** Take the files of a paste or a drop; a text is left to the browser. */
  receive(event, { files }) {
    if (!files.length) return;
    event.preventDefault();
    this.take([...files]);
  }

  /** Add files, one after the other; the first fault is shown. */
  take(files) {
    this.composer.warn("");
    this.busy += 1;
    this.reading = this.reading
      .then(() => this.add(files))
      .catch((error) => this.composer.warn(error.message))
      .finally(() => {
        this.busy -= 1;
        this.draw();
      });
    return this.reading;
  }

  async add(files) {
    for (const file of files) {
      const context = this.context();
      if (!context) throw new Error("This model does not read images.");
      const image = await imageOf(file, context.limits);
      const fault = faultOf([...context.before, ...this.images, image], context);
      if (fault) throw new Error(fault);
      this.images.push(image);
      say(`${image.name} is attached`);
      this.draw();
    }
  }

  set(images) {
    this.images = images;
    this.draw();
  }

  draw() {
    const shown = thumbnails(this.images);
    const items = this.images.map((image, place) => {
      const remove = button(`Remove ${image.name}`, "close", () => this.remove(place));
      return el("li", {}, shown[place], remove);
    });
    this.list.replaceChildren(...items);
    this.list.hidden = !items.length;
    this.composer.changed();
  }

  remove(place) {
    const [{ name }] = this.images.splice(place, 1);
    say(`${name} is removed`);
    this.draw();
    const next = this.list.children[Math.min(place, this.images.length - 1)];
    (next?.lastElementChild ?? this.composer.box).focus();
  }

  /** Show the button only where images can be sent. */
  offer() {
    this.button.hidden = !this.context();
  }
}
