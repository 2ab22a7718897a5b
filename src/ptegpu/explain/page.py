"""The page around a picture: drag to move, wheel to zoom, double-click to fit, point at a box for details."""

from __future__ import annotations

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{title}</title><style>
html, body {{ margin: 0; height: 100%; overflow: hidden; background: Canvas; color: CanvasText }}
svg {{ width: 100vw; height: 100vh; cursor: grab; display: block }}
#details {{ position: fixed; right: 12px; top: 12px; max-width: min(44em, 60vw); max-height: 90vh; overflow: hidden;
  padding: 8px 12px; white-space: pre-wrap; overflow-wrap: anywhere; background: Canvas; border: 1px solid #8c959f;
  border-radius: 8px; font: 12px ui-monospace, monospace; pointer-events: none }}
#details:empty {{ display: none }}
</style></head><body>
{svg}
<div id="details"></div>
<script>
const svg = document.querySelector("svg"), details = document.getElementById("details");
const full = svg.getAttribute("viewBox").split(" ").map(Number);
let [x, y] = full, scale = Math.min(1.5, Math.max(0.4, innerWidth / full[2])), drag = null;
const show = () => svg.setAttribute("viewBox", `${{x}} ${{y}} ${{innerWidth / scale}} ${{innerHeight / scale}}`);
x -= (innerWidth / scale - full[2]) / 2;
svg.addEventListener("wheel", e => {{
  e.preventDefault();
  if (e.ctrlKey || e.metaKey || !e.deltaX && Math.abs(e.deltaY) >= 50) {{
    const next = Math.min(8, Math.max(0.02, scale * Math.exp(-e.deltaY / 400)));
    x += e.clientX / scale - e.clientX / next; y += e.clientY / scale - e.clientY / next; scale = next;
  }} else {{ x += e.deltaX / scale; y += e.deltaY / scale; }}
  show();
}}, {{ passive: false }});
svg.addEventListener("pointerdown", e => {{ drag = [e.clientX, e.clientY]; svg.setPointerCapture(e.pointerId); }});
svg.addEventListener("pointerup", () => drag = null);
svg.addEventListener("pointermove", e => {{
  if (!drag) return;
  x -= (e.clientX - drag[0]) / scale; y -= (e.clientY - drag[1]) / scale; drag = [e.clientX, e.clientY];
  show();
}});
svg.addEventListener("dblclick", () => {{
  scale = Math.min(innerWidth / full[2], innerHeight / full[3]);
  x = full[0] - (innerWidth / scale - full[2]) / 2; y = full[1];
  show();
}});
for (const box of svg.querySelectorAll(".box")) {{
  const id = box.dataset.id, lines = svg.querySelectorAll(`[data-from="${{id}}"], [data-to="${{id}}"]`);
  box.addEventListener("pointerenter", () => {{
    details.textContent = box.querySelector("title").textContent;
    for (const line of lines) line.classList.add("marked");
  }});
  box.addEventListener("pointerleave", () => {{
    details.textContent = "";
    for (const line of lines) line.classList.remove("marked");
  }});
}}
addEventListener("resize", show); show();
</script></body></html>
"""
