'use strict';

// The statistics of a deduplication: stages, cluster sizes, tasks.
const DedupPanels = (() => {
  const {column, make, numbers, table, wideCard} = Elements;
  const percent = (part, whole) => Format.percent(whole ? part / whole : NaN);

  function stages(context) {
    const columns = [
      column('stage', (row) => row.stage),
      column(
          '',
          (row) =>
              Charts.bar([{share: row.units ? row.finished / row.units : 0, className: 'kept'}]),
          'fill'),
      numbers('finished', (row) => Format.count(row.finished)),
      numbers('units', (row) => Format.count(row.units)),
    ];
    const made = table(columns, context.overview.stages);
    made.classList.add('bars');
    return [wideCard(null, made)];
  }

  // Clusters of a size are counted over many powers of ten: the bars are logarithmic.
  function sizes(context) {
    const {sizes} = context.overview;
    if (!sizes.length) return [];
    const most = Math.log1p(Math.max(...sizes.map((row) => row.clusters)));
    const columns = [
      numbers(
          'copies in a cluster',
          (row) => row.from === row.to ? Format.count(row.from) :
                                         `${Format.count(row.from)} – ${Format.count(row.to)}`),
      column(
          '',
          (row) =>
              Charts.bar([{share: Math.log1p(row.clusters) / most, colour: 'var(--series-0)'}]),
          'fill'),
      numbers('clusters', (row) => Format.count(row.clusters)),
    ];
    const made = table(columns, sizes);
    made.classList.add('bars');
    made.id = 'cluster-sizes';
    return [wideCard(
        null, make('div', {class: 'medium'}, made),
        make('p', {text: 'The bars are logarithmic.'}))];
  }
  function tasks(context) {
    const {most, tasks} = context.overview;
    if (!most.length) return [];
    const columns = [
      numbers('task', (row) => String(row.task)),
      column(
          'first file', (row) => make('span', {class: 'mono', text: Texts.name(row.file)}),
          'value'),
      numbers('documents', (row) => Format.count(row.documents)),
      numbers('duplicates', (row) => Format.count(row.documents - row.kept)),
      numbers('', (row) => percent(row.documents - row.kept, row.documents)),
    ];
    return [wideCard(
        null, make('div', {class: 'tall'}, table(columns, most)),
        tasks > most.length ?
            make('p', {text: `Those of ${Format.count(tasks)} with most duplicates.`}) :
            null)];
  }
  const figures = (overview) => [
      ['by', Texts.name(overview.by, 20)],
      ['documents', Format.si(overview.documents)],
      ...(overview.pairs === null ? [['removed', Format.bytes(overview.removed_bytes)]] : [
        ['pairs', Format.si(overview.pairs)],
        ['clusters', Format.si(overview.clusters)],
        [
          'duplicates', Format.si(overview.duplicates),
          percent(overview.duplicates, overview.documents)
        ],
      ]),
      ['kept', Format.si(overview.kept)],
      ['empty', Format.si(overview.empty)],
      ['inputs', Format.count(overview.inputs), 'files'],
  ];
  const sections = [
    {id: 'stages', title: 'Stages', cards: stages},
    {id: 'clusters', title: 'Clusters', cards: sizes},
    {id: 'tasks', title: 'Inputs', cards: tasks},
    {id: 'sample', title: 'Documents', cards: (context) => SamplePanel.cards(context)},
  ];
  return {figures, sections};
})();
