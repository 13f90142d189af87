'use strict';

// How evenly the tokens choose the experts: a map of all layers, and one of the experts of a layer,
// over the steps. The colour is the load relative to the mean of the layer.
const ExpertsPanel = (() => {
  const {make, named, wideCard} = Elements;
  const kIdle = 0.01;            // times the mean
  const kNames = 46, kMark = 8;  // pixels left of the cells, and below them
  const kMostHeight = 460;
  const kLegend = [
    [0, `idle: below ${kIdle} × mean`], [0.25, '≤ 0.25 × mean'], [0.5, '0.5 × mean'], [1, 'even'],
    [2, '2 × mean'], [4, '≥ 4 × mean']
  ];
  const chosenLayers = new Map();  // id of a run -> index of a layer

  // Blue: fewer tokens than the mean, red: more; full colour at a quarter and at four times.
  function colourOf(load) {
    if (load < kIdle) return Theme.colour('ink');
    const octaves = Math.log2(load);
    return Theme.mix(
        Theme.colour('cell'), Theme.colour(octaves > 0 ? 'slow' : 'fast'),
        Math.min(1, Math.abs(octaves) / 2));
  }
  const times = (load) => (load < kIdle ? 'idle: ' : '') + Format.number(load, 3) + ' × mean';

  // Two base64 digits for each load; see docs/dashboard.md.
  const kDigits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  const digits = new Map([...kDigits].map((digit, value) => [digit, value]));
  function decode(text) {
    return Float32Array.from({length: text.length / 2}, (unused, i) => {
      const code = 64 * digits.get(text[2 * i]) + digits.get(text[2 * i + 1]);
      return code ? 2 ** ((code - 1) / 256 - 7) : 0;
    });
  }

  // Cells of loads: a row for each layer or expert, a column for each step. `rows` is
  // {count, name(row), load(row, column), label}.
  class HeatMap {
    constructor(steps, rows, choose) {
      this.steps = steps;
      this.rows = rows;
      this.at = null;  // {row, column} below the pointer
      this.marked = null;
      this.canvas = make('canvas');
      this.element = make(
          'div', {
            class: 'heat-map',
            tabindex: '0',
            role: 'img',
            'data-rows': rows.count,
            'data-columns': steps.length,
            'aria-label': `${rows.label}. Arrow keys read single cells.`,
          },
          this.canvas);
      this.draw = () => this.drawNow();
      new ResizeObserver(() => Frames.request(this.draw)).observe(this.element);
      this.canvas.addEventListener('pointermove', (event) => this.point(event));
      this.element.addEventListener('keydown', (event) => this.key(event));
      for (const [target, kind] of [[this.canvas, 'pointerleave'], [this.element, 'blur']])
        target.addEventListener(kind, () => this.show(null));
      if (choose) {
        this.canvas.style.cursor = 'pointer';
        this.canvas.addEventListener('click', () => this.at && choose(this.at.row));
      }
    }
    mark(row) {
      this.marked = row;
      Frames.request(this.draw);
    }
    drawNow() {
      const width = this.element.clientWidth;
      if (!width) return;
      const {count} = this.rows;
      this.cellWidth = (width - kNames) / this.steps.length;
      this.cellHeight = Math.max(2, Math.min(16, Math.floor(kMostHeight / count)));
      const height = count * this.cellHeight + kMark + 14;
      this.canvas.style.width = width + 'px';
      this.canvas.style.height = height + 'px';
      const context = Frames.prepare(this.canvas, width, height);
      if (!context) return;
      for (let row = 0; row < count; ++row) this.drawRow(context, row);
      this.drawNames(context, width, count * this.cellHeight);
      this.drawMarks(context, width);
    }
    // Cells touch: their edges are whole pixels.
    edge(column) {
      return Math.round(kNames + column * this.cellWidth);
    }
    drawRow(context, row) {
      const gap = this.cellHeight > 6 ? 1 : 0;
      this.steps.forEach((unused, column) => {
        const left = this.edge(column), right = Math.max(left + 1, this.edge(column + 1));
        context.fillStyle = colourOf(this.rows.load(row, column));
        context.fillRect(left, row * this.cellHeight, right - left, this.cellHeight - gap);
      });
    }
    drawNames(context, width, bottom) {
      context.font = '11px system-ui, sans-serif';
      context.fillStyle = Theme.colour('soft');
      context.textBaseline = 'middle';
      context.textAlign = 'right';
      const every = Math.ceil(13 / this.cellHeight);
      for (let row = 0; row < this.rows.count; row += every)
        context.fillText(
            this.rows.name(row), kNames - 6,
            row * this.cellHeight + Math.min(this.cellHeight, 13) / 2);
      context.textBaseline = 'alphabetic';
      const columns = this.steps.length, marks = Math.min(columns, Math.floor(width / 110));
      let last = 0;  // where the name before ends
      for (let i = 0; i < marks; ++i) {
        const column = marks > 1 ? Math.round(i * (columns - 1) / (marks - 1)) : 0;
        const text = (i ? '' : 'step ') + Format.count(this.steps[column]);
        const half = context.measureText(text).width / 2;
        const x = Math.min(width - half, kNames + (column + 0.5) * this.cellWidth);
        if (x - half < last) continue;
        context.textAlign = 'center';
        context.fillText(text, x, bottom + kMark + 8);
        last = x + half + 6;
      }
    }
    drawMarks(context, width) {
      context.lineWidth = 2;
      context.strokeStyle = Theme.colour('ink');
      if (this.marked !== null)
        context.strokeRect(
            kNames - 1, this.marked * this.cellHeight - 1, width - kNames, this.cellHeight + 1);
      if (!this.at) return;
      context.strokeStyle = Theme.colour('gold');
      const left = this.edge(this.at.column);
      context.strokeRect(
          left - 1, this.at.row * this.cellHeight - 1, Math.max(4, this.cellWidth + 1),
          this.cellHeight + 1);
    }
    describe({row, column}) {
      return [
        'step ' + Format.count(this.steps[column]), this.rows.title(row),
        times(this.rows.load(row, column))
      ].join(' · ');
    }
    // The cell below the pointer or reached with the keys, or null.
    show(at, x, y) {
      this.at = at;
      Frames.request(this.draw);
      if (at)
        Tooltip.show(x, y, this.describe(at));
      else
        Tooltip.hide();
    }
    point(event) {
      const row = Math.floor(event.offsetY / this.cellHeight),
            column = Math.floor((event.offsetX - kNames) / this.cellWidth);
      const inside = row >= 0 && row < this.rows.count && column >= 0 && column < this.steps.length;
      this.show(inside ? {row, column} : null, event.clientX, event.clientY);
    }
    key(event) {
      const move = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]};
      if (!move[event.key] || !this.cellWidth) return;
      event.preventDefault();
      const from = this.at || {row: 0, column: this.steps.length - 1};
      const [down, right] = this.at ? move[event.key] : [0, 0];
      const within = (value, count) => Math.min(count - 1, Math.max(0, value));
      const at = {
        row: within(from.row + down, this.rows.count),
        column: within(from.column + right, this.steps.length)
      };
      const box = this.canvas.getBoundingClientRect();
      this.show(at, box.left + this.edge(at.column), box.top + at.row * this.cellHeight);
    }
  }

  function legend() {
    return make(
        'div', {class: 'key'}, ...kLegend.map(([load, text]) => named(colourOf(load), text)));
  }
  function layerMap(experts, layer) {
    const loads = decode(layer.loads);
    return new HeatMap(experts.steps, {
      count: experts.experts,
      label: `Loads of the experts of layer ${layer.layer} over the steps`,
      name: String,
      title: (row) => 'expert ' + row,
      load: (row, column) => loads[column * experts.experts + row],
    });
  }
  function newestText(experts, layer) {
    const last = experts.steps.length - 1;
    return `In step ${Format.count(experts.steps[last])}: busiest expert ${
               times(layer.max_load[last])}, entropy ${Format.number(layer.entropy[last])}, ${
               layer.idle[last]} of ${experts.experts} experts idle` +
        (layer.dropped[last] ? `, ${Format.count(layer.dropped[last])} choices dropped` : '');
  }

  function cards(context) {
    return context.runs.flatMap((run) => {
      const {experts} = run.detail;
      if (!experts || !experts.layers.length) return [];
      const {layers, steps} = experts;
      const overview = new HeatMap(
          steps, {
            count: layers.length,
            label: 'Largest load of an expert by layer over the steps',
            name: (row) => String(layers[row].layer),
            title: (row) => `layer ${layers[row].layer}, busiest expert`,
            load: (row, column) => layers[row].max_load[column],
          },
          choose);
      const select = make(
          'select', {'aria-label': 'Layer', onchange: () => choose(select.selectedIndex)},
          ...layers.map((layer) => make('option', {text: 'layer ' + layer.layer})));
      const newest = make('p', {class: 'note'}), host = make('div');
      function choose(index) {
        chosenLayers.set(run.id, index);
        select.selectedIndex = index;
        overview.mark(index);
        newest.textContent = newestText(experts, layers[index]);
        host.replaceChildren(layerMap(experts, layers[index]).element);
      }
      choose(Math.min(chosenLayers.get(run.id) ?? experts.worst[0], layers.length - 1));
      const shown = `${Format.count(steps.length)} counts` +
          (experts.thinned ? ', evenly spaced; the run has more' : '');
      return [wideCard(
          'Experts' + run.of,
          make('p', {text: `${layers.length} layers of ${experts.experts} experts · ${shown}`}),
          make('h4', {text: 'Busiest expert of each layer'}), overview.element,
          make('h4', {}, 'Experts of ', select), newest, host, legend())];
    });
  }
  return {cards};
})();
