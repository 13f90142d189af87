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
  // powers of two; format: a value beside a curve's name; leftOut: not shown while all points have
  // this value.
  const chart = (id, title, unit, keys, more) => ({id, title, unit, keys, ...more});
  const noisy = true, fromZero = true, perToken = 'nats per token';
  const kCharts = [
    chart('loss', 'Loss', perToken, ['loss', 'valid_loss'], {wide: true, noisy: ['loss']}),
    chart('valid', 'Validation loss by source', perToken, null, {match: /^valid\.(.+)\.loss$/}),
    chart(
        'bits', 'Validation, bits per byte', '', ['valid_bits_per_byte'],
        {match: /^valid\.(.+)\.bits_per_byte$/}),
    chart(
        'accuracy', 'Validation scores', '',
        ['valid_accuracy', 'valid_macro_f1', 'valid_micro_f1', 'valid_reward_accuracy'],
        {match: /^valid\.(.+\.(?:accuracy|macro_f1))$/, ...share}),
    chart('lr', 'Learning rate', '', ['lr'], {fromZero}),
    chart('grad_norm', 'Gradient norm', 'before clipping', ['grad_norm'], {noisy}),
    chart('loss_scale', 'Loss scale', '', ['loss_scale'], {leftOut: 1}),
    chart('tokens_per_s', 'Speed', 'tokens/s', ['tokens_per_s'], {noisy, ...rate}),
    chart('mfu', 'MFU', 'model FLOP utilization', ['mfu', 'mfu_full_attention'], {noisy, ...share}),
    chart(
        'step_time', 'Step time and data wait', '', ['step_time_s', 'data_wait_s', 'comm_wait_s'],
        {noisy, fromZero, ...time}),
    chart('j_per_token', 'Energy per token', 'J/token', ['j_per_token'], {noisy}),
    chart(
        'energy', 'Energy per step', 'J', ['energy_j', 'energy_gpu_j', 'energy_node_j'],
        {noisy, ...rate}),
    chart('power', 'Power', 'W, all nodes', ['power_w'], {noisy, ...rate}),
    chart('rewards', 'Rewards', '', ['reward_chosen', 'reward_rejected', 'reward_margin'], {noisy}),
    chart('memory', 'Memory', 'rank 0', ['memory_bytes'], {fromZero, ...size}),
    chart('comm_bytes', 'Communication per step', 'rank 0', ['comm_bytes'], {...size}),
  ];
  const kNoCurves = new Set(['step', 'seq', 'tokens', 'targets', 'time_s', 'stage', 'comm_busy_s']);

  // What curves are called beside their panel.
  const kLabels = {
    valid_loss: 'validation loss',
    valid_bits_per_byte: 'validation bits per byte',
    valid_accuracy: 'accuracy',
    valid_macro_f1: 'macro F1',
    valid_micro_f1: 'micro F1',
    valid_reward_accuracy: 'reward accuracy',
    lr: 'learning rate',
    grad_norm: 'gradient norm',
    loss_scale: 'loss scale',
    tokens_per_s: 'tokens/s',
    mfu: 'MFU',
    mfu_full_attention: 'MFU with full attention',
    step_time_s: 'step time',
    data_wait_s: 'data wait',
    comm_wait_s: 'communication wait',
    j_per_token: 'energy per token',
    energy_j: 'energy',
    energy_gpu_j: 'all GPUs',
    energy_node_j: 'whole nodes',
    power_w: 'power',
    reward_chosen: 'chosen',
    reward_rejected: 'rejected',
    reward_margin: 'margin',
    memory_bytes: 'memory',
    comm_bytes: 'bytes sent',
  };
  const labelOf = (key) => kLabels[key] || key.replace(/^eval\./, '');

  function keysOf(chart, available) {
    const listed = (chart.keys || [])
                       .filter((key) => available.has(key))
                       .map((key) => ({key, label: labelOf(key)}));
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
      panels.push(complete({keys: [key], ...own(key)}, [{key, label: labelOf(key)}]));
    return panels;
  }
  function isLeftOut({leftOut}, curves) {
    if (leftOut === undefined) return false;
    return curves.every(
        (curve) => [curve.y, curve.low || [], curve.high || []].every(
            (values) => values.every((value) => value === leftOut)));
  }
  const isNoisy = (chart, key) =>
      (Array.isArray(chart.noisy) ? chart.noisy.includes(key) : Boolean(chart.noisy));
  return {forKeys, isLeftOut, isNoisy};
})();
