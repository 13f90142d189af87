'use strict';

// The grid of ranks: a block per pipeline stage, in it a strip of tp × cp cells for each dp. The
// colour is the rank's compute time relative to the median.
const RanksPanel = (() => {
  const {column, make, named, numbers, table, wideCard} = Elements;
  const kStraggler = 1.1;  // times the median
  const kGap = 10;         // pixels between stages
  const kOrder = ['tp', 'cp', 'dp', 'pp'];

  function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  function coordinates(rank, grid, order) {
    const result = {};
    let rest = rank;
    for (const name of order) {
      const extent = grid[name] || 1;
      result[name] = rest % extent;
      rest = Math.floor(rest / extent);
    }
    return result;
  }

  // The largest cells that fit, and of these the flattest arrangement: `across` strips beside each
  // other in each stage, `stages` beside each other.
  function arrange(grid, width, height) {
    const strip = (grid.tp || 1) * (grid.cp || 1), dp = grid.dp || 1, pp = grid.pp || 1;
    let best = null;
    for (let stages = 1; stages <= pp; ++stages) {
      const stageRows = Math.ceil(pp / stages);
      const most = Math.min(dp, Math.max(1, Math.floor(width / (stages * strip * 2))));
      for (let across = 1; across <= most; ++across) {
        const columns = stages * across * strip, rows = stageRows * Math.ceil(dp / across);
        const cell =
            Math.min(26, (width - (stages - 1) * kGap) / columns, (height - stageRows * 24) / rows);
        const tall = rows * cell + stageRows * 24;
        if (!best || cell > best.cell + 1e-9 || (cell > best.cell - 1e-9 && tall < best.tall))
          best = {cell, tall, stages, across, strip};
      }
    }
    const cell = Math.max(2, Math.floor(best.cell * 2) / 2);
    const blockWidth = best.across * strip * cell, blockHeight = Math.ceil(dp / best.across) * cell;
    const stageRows = Math.ceil(pp / best.stages);
    return {
      ...best,
      cell,
      blockWidth,
      blockHeight,
      height: stageRows * (blockHeight + 24),
      corner: (stage) => ({
        x: (stage % best.stages) * (blockWidth + kGap),
        y: Math.floor(stage / best.stages) * (blockHeight + 24) + 16
      }),
    };
  }
  function placeOf(at, grid, plan) {
    const corner = plan.corner(at.pp || 0);
    const dp = at.dp || 0, inner = (at.cp || 0) * (grid.tp || 1) + (at.tp || 0);
    return {
      x: corner.x + ((dp % plan.across) * plan.strip + inner) * plan.cell,
      y: corner.y + Math.floor(dp / plan.across) * plan.cell,
    };
  }
  // Blue: faster, red: slower; full colour at 25 % from the median.
  function colourOf(ratio) {
    if (ratio === null) return Theme.colour('cell');
    const share = Math.min(1, Math.abs(ratio - 1) / 0.25);
    return Theme.mix(Theme.colour('cell'), Theme.colour(ratio > 1 ? 'slow' : 'fast'), share);
  }

  class Grid {
    constructor(layout, ranks) {
      this.grid = layout.grid;
      this.order = layout.order || kOrder;
      this.nodes = layout.nodes || [];
      this.nodeOfRank = layout.node_of_rank || [];
      this.seconds =
          ranks && ranks.seconds && ranks.seconds.length === layout.ranks ? ranks.seconds : null;
      this.median = this.seconds ? median(this.seconds) : null;
      this.at = Array.from(
          {length: layout.ranks}, (unused, rank) => coordinates(rank, this.grid, this.order));
      this.chosen = null;
      this.build(layout);
    }
    build(layout) {
      this.canvas = make('canvas');
      this.element = make(
          'div', {
            class: 'grid-of-ranks',
            tabindex: '0',
            role: 'img',
            'data-ranks': layout.ranks,
            'aria-label': `${
                layout
                    .ranks} ranks by pipeline stage, data and tensor coordinate. Arrow keys read single ranks.`,
          },
          this.canvas);
      this.draw = () => this.drawNow();
      new ResizeObserver(() => Frames.request(this.draw)).observe(this.element);
      this.canvas.addEventListener('pointermove', (event) => this.point(event));
      this.element.addEventListener('keydown', (event) => this.key(event));
      const leave = () => {
        Tooltip.hide();
        this.choose(null);
      };
      this.canvas.addEventListener('pointerleave', leave);
      this.element.addEventListener('blur', leave);
    }
    ratio(rank) {
      return this.seconds && this.median > 0 ? this.seconds[rank] / this.median : null;
    }
    stragglers() {
      const all =
          this.at.map((unused, rank) => rank).filter((rank) => this.ratio(rank) >= kStraggler);
      return all.sort((a, b) => this.ratio(b) - this.ratio(a));
    }
    describe(rank) {
      const place = this.order.filter((name) => (this.grid[name] || 1) > 1)
                        .map((name) => name + ' ' + this.at[rank][name])
                        .join(', ');
      const node = this.nodes[this.nodeOfRank[rank]];
      const ratio = this.ratio(rank);
      return [
        `rank ${rank}`, place, node && 'node ' + node,
        ratio !== null && `${Format.seconds(this.seconds[rank])} = ${ratio.toFixed(2)} × median`
      ].filter(Boolean)
          .join(' · ');
    }
    drawNow() {
      const width = this.element.clientWidth;
      if (!width) return;
      const plan = this.plan = arrange(this.grid, width, 440);
      this.canvas.style.width = width + 'px';
      this.canvas.style.height = plan.height + 'px';
      const context = Frames.prepare(this.canvas, width, plan.height);
      const gap = plan.cell >= 5 ? 1 : 0;
      this.drawTitles(context, plan);
      for (let rank = 0; rank < this.at.length; ++rank) {
        const {x, y} = placeOf(this.at[rank], this.grid, plan);
        const ratio = this.ratio(rank);
        context.fillStyle = colourOf(ratio);
        context.fillRect(x, y, plan.cell - gap, plan.cell - gap);
        if (plan.cell >= 22 && this.at.length <= 999) this.number(context, rank, x, y, plan.cell);
        if (ratio >= kStraggler || rank === this.chosen)
          this.mark(context, x, y, plan.cell - gap, rank === this.chosen);
      }
    }
    drawTitles(context, plan) {
      context.font = '11px system-ui, sans-serif';
      context.fillStyle = Theme.colour('soft');
      context.textBaseline = 'alphabetic';
      for (let stage = 0; stage < (this.grid.pp || 1); ++stage) {
        const {x, y} = plan.corner(stage);
        const text =
            (this.grid.pp || 1) > 1 ? (plan.blockWidth > 60 ? 'stage ' : '') + stage : 'all ranks';
        if (context.measureText(text).width <= plan.blockWidth + kGap - 2)
          context.fillText(text, x, y - 4);
      }
    }
    number(context, rank, x, y, cell) {
      context.fillStyle = Theme.colour('ink');
      context.font = '10px system-ui, sans-serif';
      context.textAlign = 'center';
      context.fillText(String(rank), x + (cell - 1) / 2, y + cell / 2 + 3);
      context.textAlign = 'left';
    }
    mark(context, x, y, size, chosen) {
      context.strokeStyle = Theme.colour(chosen ? 'gold' : 'ink');
      context.lineWidth = chosen ? 2 : 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
    // The rank below a pixel, or null.
    find(x, y) {
      const {plan} = this;
      const rowHeight = plan.blockHeight + 24;
      const stage =
          Math.floor(y / rowHeight) * plan.stages + Math.floor(x / (plan.blockWidth + kGap));
      if (!(stage < (this.grid.pp || 1))) return null;
      const corner = plan.corner(stage);
      const column = Math.floor((x - corner.x) / plan.cell),
            row = Math.floor((y - corner.y) / plan.cell);
      if (column < 0 || row < 0 || column >= plan.across * plan.strip) return null;
      const dp = row * plan.across + Math.floor(column / plan.strip), inner = column % plan.strip;
      if (dp >= (this.grid.dp || 1)) return null;
      return this.rankOf({
        pp: stage,
        dp,
        tp: inner % (this.grid.tp || 1),
        cp: Math.floor(inner / (this.grid.tp || 1))
      });
    }
    rankOf(place) {
      let rank = 0, stride = 1;
      for (const name of this.order) {
        rank += (place[name] || 0) * stride;
        stride *= this.grid[name] || 1;
      }
      return rank;
    }
    choose(rank) {
      if (rank === this.chosen) return;
      this.chosen = rank;
      Frames.request(this.draw);
    }
    point(event) {
      const rank = this.plan ? this.find(event.offsetX, event.offsetY) : null;
      this.choose(rank);
      if (rank === null)
        Tooltip.hide();
      else
        Tooltip.show(event.clientX, event.clientY, this.describe(rank));
    }
    key(event) {
      const strides = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: this.plan && this.plan.strip * this.plan.across,
        ArrowUp: this.plan && -this.plan.strip * this.plan.across
      };
      const stride = strides[event.key];
      if (!stride) return;
      event.preventDefault();
      const rank = Math.min(
          this.at.length - 1,
          Math.max(0, (this.chosen === null ? -Math.max(1, stride) : this.chosen) + stride));
      this.choose(rank);
      const box = this.canvas.getBoundingClientRect(),
            place = placeOf(this.at[rank], this.grid, this.plan);
      Tooltip.show(box.left + place.x, box.top + place.y, this.describe(rank));
    }
  }

  function stragglerTable(grid) {
    const ranks = grid.stragglers();
    if (!ranks.length)
      return make('p', {
        class: 'note',
        text: `No rank is more than ${Format.percent(kStraggler - 1)} slower than the median.`
      });
    const title = `Slower than ${kStraggler} × median: ${ranks.length} of ${
        Format.count(grid.at.length)} ranks`;
    const place = (rank) => grid.order.map((name) => name + ' ' + grid.at[rank][name]).join(', ');
    const columns = [
      numbers('rank', String),
      column('node', (rank) => grid.nodes[grid.nodeOfRank[rank]] || ''),
      column('coordinates', place),
      numbers('compute per step', (rank) => Format.seconds(grid.seconds[rank])),
      numbers('× median', (rank) => grid.ratio(rank).toFixed(2)),
    ];
    return make(
        'div', {class: 'medium'}, make('p', {class: 'note worse', text: title}),
        table(columns, ranks.slice(0, 10)));
  }
  function scaleKey() {
    return make(
        'div', {class: 'key'},
        ...[0.75, 0.9, 1, 1.1, 1.25].map((ratio) => named(colourOf(ratio), ratio + ' × median')));
  }
  // The product of the extents is the number of ranks, and small enough to draw.
  function isWhole({grid, ranks, order}) {
    if (!grid || !(ranks > 1) || !(ranks <= 200000)) return false;
    return (order || kOrder).reduce((product, name) => product * (grid[name] || 1), 1) === ranks;
  }
  function cards(context) {
    return context.runs.flatMap((run) => {
      const {layout} = run.detail;
      if (!layout || !isWhole(layout)) return [];
      const grid = new Grid(layout, run.detail.ranks);
      const extents = grid.order.filter((name) => (layout.grid[name] || 1) > 1)
                          .map((name) => name + ' ' + layout.grid[name])
                          .join(' × ');
      const when = grid.seconds ?
          `compute time per step, looked at in step ${
              Format.count(run.detail.ranks.step)}; median ${Format.seconds(grid.median)}` :
          run.summary.state === 'running' ? 'no times yet' :
                                            'no times were recorded';
      const nodes = grid.nodes.length ?
          `${Format.count(grid.nodes.length)} ${grid.nodes.length === 1 ? 'node' : 'nodes'}` :
          '';
      return [wideCard(
          'Ranks' + run.of, make('p', {
            text:
                [`${Format.count(layout.ranks)} ranks`, extents, nodes, when].filter(Boolean).join(
                    ' · ')
          }),
          grid.element, grid.seconds ? scaleKey() : null,
          grid.seconds ? stragglerTable(grid) : null)];
    });
  }
  return {cards};
})();
