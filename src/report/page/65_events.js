'use strict';

// What happened to the runs, newest first.
const EventsPanel = (() => {
  const kBad = ['failed', 'diverged', 'spike', 'stalled'];
  function cards(context) {
    const {make, table, wideCard} = Elements;
    const rows = context.runs.flatMap(
        (run) =>
            ((run.detail && run.detail.events) || []).map((event) => ({...event, run: run.name})));
    if (!rows.length) return [];
    rows.sort((a, b) => (b.time_s || 0) - (a.time_s || 0));
    const columns = [
      {title: 'time', class: 'mono', cell: (row) => Format.time(row.time_s)},
      {
        title: 'event',
        cell: (row) =>
            make('span', {class: kBad.includes(row.event) ? 'worse' : '', text: row.event})
      },
      {title: 'step', number: true, cell: (row) => Format.count(row.step)},
      {title: 'message', class: 'value', cell: (row) => row.message || ''},
    ];
    if (context.runs.length > 1) columns.splice(1, 0, {title: 'run', cell: (row) => row.run});
    return [wideCard(null, make('div', {class: 'tall'}, table(columns, rows)))];
  }
  return {cards};
})();
