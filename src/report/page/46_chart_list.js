'use strict';

// Which curves share a panel, and how their values are written.
const ChartList = (() => {
  const plain = (value) => Format.number(value);
  const siMark = (value, digits) => Format.si(value, '', digits);
  const rate = {format: (value) => Format.si(value)};
  const time = {mark: Format.seconds, format: (value) => Format.seconds(value)};
  const share = {mark: Format.percent, format: (value) => Format.percent(value, 4)};
  const size = {mark: Format.bytes, format: (value) => Format.bytes(value), binary: true};

  // keys: these, in this order; match: all keys of this form, the first group is the curve's name;
  // noisy: smoothed by the slider; mark(value, digits): texts of the y axis; binary: its steps are
  // powers of two; format: a value beside a curve's name.
  const kCharts = [
    {
      id: 'loss',
      title: 'Loss',
      unit: 'nats per token',
      keys: ['loss', 'valid_loss'],
      wide: true,
      noisy: ['loss']
    },
    {
      id: 'valid',
      title: 'Validation loss by source',
      unit: 'nats per token',
      match: /^valid\.(.+)\.loss$/
    },
    {
      id: 'bits',
      title: 'Validation, bits per byte',
      keys: ['valid_bits_per_byte'],
      match: /^valid\.(.+)\.bits_per_byte$/
    },
    {
      id: 'accuracy',
      title: 'Validation scores',
      keys: ['valid_accuracy', 'valid_macro_f1', 'valid_micro_f1', 'valid_reward_accuracy'],
      match: /^valid\.(.+\.(?:accuracy|macro_f1))$/,
      ...share
    },
    {id: 'lr', title: 'Learning rate', keys: ['lr'], fromZero: true},
    {
      id: 'grad_norm',
      title: 'Gradient norm',
      unit: 'before clipping',
      keys: ['grad_norm'],
      noisy: true
    },
    {
      id: 'tokens_per_s',
      title: 'Speed',
      unit: 'tokens/s',
      keys: ['tokens_per_s'],
      noisy: true,
      ...rate
    },
    {
      id: 'mfu',
      title: 'MFU',
      unit: 'model FLOP utilization',
      keys: ['mfu', 'mfu_full_attention'],
      noisy: true,
      ...share
    },
    {
      id: 'step_time',
      title: 'Step time and data wait',
      keys: ['step_time_s', 'data_wait_s', 'comm_wait_s'],
      noisy: true,
      fromZero: true,
      ...time
    },
    {
      id: 'j_per_token',
      title: 'Energy per token',
      unit: 'J/token',
      keys: ['j_per_token'],
      noisy: true
    },
    {
      id: 'energy',
      title: 'Energy per step',
      unit: 'J',
      keys: ['energy_j', 'energy_gpu_j', 'energy_node_j'],
      noisy: true,
      ...rate
    },
    {id: 'power', title: 'Power', unit: 'W, all nodes', keys: ['power_w'], noisy: true, ...rate},
    {
      id: 'rewards',
      title: 'Rewards',
      keys: ['reward_chosen', 'reward_rejected', 'reward_margin'],
      noisy: true
    },
    {
      id: 'memory',
      title: 'Memory',
      unit: 'rank 0',
      keys: ['memory_bytes'],
      fromZero: true,
      ...size
    },
    {
      id: 'comm_bytes',
      title: 'Communication per step',
      unit: 'rank 0',
      keys: ['comm_bytes'],
      ...size
    },
  ];
  const kNoCurves = new Set(['step', 'seq', 'tokens', 'targets', 'time_s', 'stage', 'comm_busy_s']);

  function keysOf(chart, available) {
    const listed =
        (chart.keys || []).filter((key) => available.has(key)).map((key) => ({key, label: key}));
    const matched = chart.match ? [...available]
                                      .map((key) => ({key, found: chart.match.exec(key)}))
                                      .filter(({found}) => found)
                                      .map(({key, found}) => ({key, label: found[1]})) :
                                  [];
    return [...listed, ...matched.sort((a, b) => (a.label < b.label ? -1 : 1))];
  }
  function complete(chart, curves) {
    return {mark: siMark, format: plain, ...chart, curves};
  }
  // A panel for a key that no other panel shows: results of evaluations, and keys of newer
  // programs.
  function own(key) {
    const task = /^eval\.(.+)\.([^.]+)$/.exec(key);
    if (task) return {id: key, title: task[1], unit: task[2]};
    return {id: key, title: key, noisy: true};
  }
  // The panels for the keys that the runs have: [{id, title, …, curves: [{key, label}]}].
  function forKeys(available) {
    const left = new Set([...available].filter((key) => !kNoCurves.has(key)));
    const panels = [];
    for (const chart of kCharts) {
      const curves = keysOf(chart, left);
      if (!curves.length) continue;
      for (const {key} of curves) left.delete(key);
      panels.push(complete(chart, curves));
    }
    for (const key of [...left].sort())
      panels.push(complete({keys: [key], ...own(key)}, [{key, label: key.replace(/^eval\./, '')}]));
    return panels;
  }
  const isNoisy = (chart, key) =>
      (Array.isArray(chart.noisy) ? chart.noisy.includes(key) : Boolean(chart.noisy));
  return {forKeys, isNoisy};
})();
