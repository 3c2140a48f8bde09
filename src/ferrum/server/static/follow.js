// The view follows the answer until the reader scrolls up; at the end, or by the button, it follows again.

const NEAR = 32;

export class Follower {
  /**
   * @param scroller scrolls
   * @param content grows in it
   * @param button leads to the end
   */
  constructor(scroller, content, button) {
    Object.assign(this, { scroller, button, following: true, last: 0, height: 0 });
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    const sizes = new ResizeObserver(() => this.following && this.toEnd());
    sizes.observe(content);
    sizes.observe(scroller);
    button.addEventListener("click", () => this.follow());
  }

  get distance() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
  }

  /** A text that shrinks moves the view up, too: that is not the reader. */
  scrolled() {
    const { scrollTop, scrollHeight } = this.scroller;
    if (this.distance < NEAR) this.following = true;
    else if (scrollTop < this.last && scrollHeight >= this.height) this.following = false;
    Object.assign(this, { last: scrollTop, height: scrollHeight });
    this.button.hidden = this.following || this.distance < NEAR;
  }

  /** Go to the end and follow. */
  follow() {
    this.following = true;
    this.toEnd();
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.button.hidden = true;
  }
}
