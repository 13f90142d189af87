'use strict';

// Draws what changed, once per frame of the screen.
const Frames = (() => {
  const waiting = new Set();
  const counts = {framesDrawn: 0, lastFrameMs: 0, longestFrameMs: 0};
  let requested = false;

  function request(draw) {
    waiting.add(draw);
    if (requested) return;
    requested = true;
    requestAnimationFrame(flush);
  }
  function flush() {
    requested = false;
    const begin = performance.now();
    const now = [...waiting];
    waiting.clear();
    for (const draw of now) {
      try {
        draw();
      } catch (error) {
        console.error(error);
      }  // the other panels are still drawn
    }
    counts.framesDrawn += 1;
    counts.lastFrameMs = performance.now() - begin;
    counts.longestFrameMs = Math.max(counts.longestFrameMs, counts.lastFrameMs);
  }
  // A canvas with the pixels of the screen. Returns its context, scaled to CSS pixels, and its
  // size; null while it is not laid out.
  function prepare(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    if (!width || !height) return null;
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels[0]) canvas.width = pixels[0];
    if (canvas.height !== pixels[1]) canvas.height = pixels[1];
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }
  return {counts, flush, prepare, request};
})();
