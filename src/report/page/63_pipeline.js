'use strict';

// The schedule of the pipeline: a row per stage, a box per forward or backward of a micro-batch.
const PipelinePanel = (() => {
  const kRow = 22, kLeft = 56, kMostActions = 20000;

  function box(action, left, width, y) {
    const {svg} = Elements;
    const rect = svg('rect', {
      x: left,
      y: y + 1,
      width: Math.max(0.5, width - 0.5),
      height: kRow - 3,
      fill: Theme.action(action.kind),
      rx: 1
    });
    // Chunks after the first are paler, as in the figures of the literature.
    rect.setAttribute('fill-opacity', String(Math.max(0.45, 1 - 0.25 * (action.chunk || 0))));
    const part = svg('g', {class: 'action'}, rect);
    Tooltip.attach(
        part,
        () => `stage ${action.stage}: ${action.kind.replace('_', ' of ')}, micro-batch ${
                  action.micro_batch}` +
            (action.chunk ? `, chunk ${action.chunk}` : '') +
            `, ${Format.number(action.begin)} to ${Format.number(action.end)}`);
    const text = String(action.micro_batch);
    if (width > 6.5 * text.length + 5)
      part.append(svg('text', {x: left + width / 2, y: y + kRow - 8, text}));
    return part;
  }
  function diagram(pipeline) {
    const {svg} = Elements;
    const height = pipeline.stages * kRow + 4;
    const drawing = svg(
        'svg', {class: 'pipeline', height, role: 'img', 'aria-label': 'Schedule of the pipeline'});
    const end = pipeline.actions.reduce((latest, action) => Math.max(latest, action.end), 0);
    let drawnWidth = 0;
    new ResizeObserver(() => {
      const width = Math.round(drawing.clientWidth || drawing.parentNode.clientWidth);
      if (!width || width === drawnWidth) return;
      drawnWidth = width;
      const scale = (width - kLeft) / end;
      drawing.setAttribute('viewBox', `0 0 ${width} ${height}`);
      const names = Array.from(
          {length: pipeline.stages},
          (unused, stage) =>
              svg('text', {x: 0, y: stage * kRow + kRow - 8, text: 'stage ' + stage}));
      drawing.replaceChildren(
          ...names,
          ...pipeline.actions.slice(0, kMostActions)
              .map(
                  (action) =>
                      box(action, kLeft + action.begin * scale, (action.end - action.begin) * scale,
                          action.stage * kRow)));
    }).observe(drawing);
    return drawing;
  }
  function describe(pipeline) {
    const parts = ['schedule ' + pipeline.schedule, pipeline.stages + ' stages'];
    if (pipeline.chunks > 1) parts.push(pipeline.chunks + ' chunks per stage');
    parts.push(pipeline.micro_batches + ' micro-batches');
    if (pipeline.shown_micro_batches < pipeline.micro_batches)
      parts.push('the first ' + pipeline.shown_micro_batches + ' are drawn');
    if (Format.known(pipeline.bubble)) parts.push('bubble ' + Format.percent(pipeline.bubble));
    return parts.join(' · ');
  }
  function cards(context) {
    const {make, named, wideCard} = Elements;
    return context.runs.flatMap((run) => {
      const pipeline = run.detail && run.detail.layout && run.detail.layout.pipeline;
      if (!pipeline || !(pipeline.stages <= 4096) || !(pipeline.actions || []).length) return [];
      const kinds = [...new Set(pipeline.actions.map((action) => action.kind))];
      const of = context.runs.length > 1 ? ' of ' + run.name : '';
      return [wideCard(
          'Pipeline' + of, make('p', {text: describe(pipeline)}),
          make('div', {class: 'scroll'}, diagram(pipeline)),
          make(
              'div', {class: 'key'},
              ...kinds.map((kind) => named(Theme.action(kind), kind.replace('_', ' of '))),
              make('span', {text: 'time in units of one forward'})))];
    });
  }
  return {cards};
})();
