'use strict';

// Operations in a log-log plane: FLOPs per byte against FLOP/s.
const Roofline = (() => {
  const kWidth = 900, kHeight = 320;
  const kArea = {left: 62, right: 885, top: 12, bottom: 282};

  function pointsOf(profile) {
    return (profile.operations || [])
        .map((operation) => ({
               ...operation,
               flops: operation.flops_per_s,
               intensity: Format.known(operation.intensity) ?
                   operation.intensity :
                   operation.flops_per_s / operation.bytes_per_s,
             }))
        .filter(
            (point) => point.flops > 0 && point.intensity > 0 && Number.isFinite(point.intensity));
  }
  const limit = (profile, name) =>
      profile[name] ?? (profile.device && profile.device[name]) ?? null;

  // The roof: given by peak and bandwidth, otherwise by what the operations say is attainable.
  function roofOf(profile, points, low, high) {
    const peak = limit(profile, 'peak_flops'), bandwidth = limit(profile, 'memory_bytes_per_s');
    if (peak > 0 && bandwidth > 0) {
      const ridge = peak / bandwidth;
      const ends = [low, ridge, high].filter((x) => x >= low && x <= high);
      return ends.map((x) => [x, Math.min(peak, bandwidth * x)]);
    }
    return points.filter((point) => point.attainable > 0 && point.work !== 'memory')
        .map((point) => [point.intensity, point.attainable])
        .sort((a, b) => a[0] - b[0]);
  }
  function axes(x, y) {
    const {svg} = Elements;
    const parts = [];
    for (const mark of Scale.marks(x, 10)) {
      const at = x.pixel(mark);
      parts.push(
          svg('line', {class: 'gridline', x1: at, x2: at, y1: kArea.top, y2: kArea.bottom}),
          svg('text',
              {x: at, y: kArea.bottom + 15, 'text-anchor': 'middle', text: Format.si(mark)}));
    }
    for (const mark of Scale.marks(y, 8)) {
      const at = y.pixel(mark);
      parts.push(
          svg('line', {class: 'gridline', x1: kArea.left, x2: kArea.right, y1: at, y2: at}),
          svg('text', {x: kArea.left - 6, y: at + 4, 'text-anchor': 'end', text: Format.si(mark)}));
    }
    parts.push(
        svg('text', {
          x: (kArea.left + kArea.right) / 2,
          y: kHeight - 6,
          'text-anchor': 'middle',
          text: 'FLOPs per byte'
        }),
        svg('text', {x: 4, y: 10, text: 'FLOP/s'}));
    return parts;
  }
  function circle(point, x, y, most) {
    const {svg} = Elements;
    const radius = Math.max(3, 18 * Math.sqrt(point.ms / most));
    const colour = {attention: 'series-1', matmul: 'series-0'}[point.work] || 'series-2';
    const made = svg('circle', {
      cx: x.pixel(point.intensity),
      cy: y.pixel(point.flops),
      r: radius,
      fill: Theme.colour(colour)
    });
    Tooltip.attach(
        made,
        () => `${point.name}: ${ProfilePanel.ms(point.ms)} per step, ${
                  Format.si(point.flops, 'FLOP/s')} at ` +
            `${Format.number(point.intensity, 3)} FLOPs per byte` +
            (Format.known(point.efficiency) ?
                 `, ${Format.percent(point.efficiency)} of attainable` :
                 ''));
    return made;
  }
  function drawing(profile) {
    const {svg} = Elements;
    const points = pointsOf(profile);
    if (points.length < 2) return null;
    const intensities = points.map((point) => point.intensity);
    const rangeX = Scale.padded(Math.min(...intensities), Math.max(...intensities), true, 0.15);
    const roof = roofOf(profile, points, rangeX[0], rangeX[1]);
    const heights = [...points.map((point) => point.flops), ...roof.map(([, height]) => height)];
    const rangeY = Scale.padded(Math.min(...heights), Math.max(...heights), true, 0.08);
    const x = Scale.make(rangeX[0], rangeX[1], kArea.left, kArea.right, true);
    const y = Scale.make(rangeY[0], rangeY[1], kArea.bottom, kArea.top, true);
    const most = Math.max(...points.map((point) => point.ms));
    const path =
        roof.map(([at, height], i) => (i ? 'L' : 'M') + x.pixel(at) + ' ' + y.pixel(height))
            .join(' ');
    return svg(
        'svg', {
          class: 'roofline',
          viewBox: `0 0 ${kWidth} ${kHeight}`,
          role: 'img',
          'aria-label': 'Roofline of the operations',
          'data-points': points.length
        },
        ...axes(x, y), roof.length > 1 ? svg('path', {d: path, 'stroke-width': 1.5}) : null,
        ...[...points].sort((a, b) => b.ms - a.ms).map((point) => circle(point, x, y, most)));
  }
  return {drawing};
})();
