"""Answers that try to run scripts in the page that shows them: known vectors in contexts of Markdown.

The vectors are those of public collections on cross-site scripting: event handlers, addresses with scripts, elements
that load, mutations of parsers.
"""

from __future__ import annotations

from typing import Final

RUN: Final = "window.hacked=1"
"""What a vector runs if the page lets it."""

_VECTORS: Final = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<body onload={RUN}>",
    f"<iframe src=javascript:{RUN}></iframe>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f"<details open ontoggle={RUN}>x</details>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<a href='java&#10;script:{RUN}'>x</a>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f"<form><button formaction=javascript:{RUN}>x</button></form>",
    f"<object data=javascript:{RUN}></object>",
    "<img src=https://evil.example/a.png>",
    "<link rel=stylesheet href=https://evil.example/a.css>",
    "<style>@import 'https://evil.example/a.css';</style>",
    "<p style='background:url(https://evil.example/a.png)'>x</p>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    f"<b onmouseover={RUN}>x</b>",
    f"<template><script>{RUN}</script></template>",
    f"<x-element onclick={RUN} id=x tabindex=1>x</x-element>",
)

_ADDRESSES: Final = (
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"java&Tab;script:{RUN}",
    f"&#106;avascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"vbscript:{RUN}",
    f"//evil.example/{RUN}",
    "https://evil.example/a.png",
    f'https://evil.example" onmouseover="{RUN}',
    f"blob:null/{RUN}",
)

_AROUND: Final = (
    "{}",
    "text {} text",
    "- {}",
    "> {}",
    "| a |\n|--|\n| {} |",
    "# {}",
    "**{}**",
)

_LINKS: Final = (
    "[x]({})",
    "![x]({})",
    "<{}>",
    '[x](https://example.org "{}")',
    "[x][r]\n\n[r]: {}",
)

_CODE: Final = (
    f'```"><img/src=x/onerror={RUN}>\nx\n```',
    f"```html\n<script>{RUN}</script>\n```",
    f"`<img src=x onerror={RUN}>`",
    f"```js onload={RUN}\n</code></pre><script>{RUN}</script>\n```",
)

ANSWERS: Final = (
    *(around.format(vector) for vector in _VECTORS for around in _AROUND),
    *(link.format(address) for address in _ADDRESSES for link in _LINKS),
    *_CODE,
)
