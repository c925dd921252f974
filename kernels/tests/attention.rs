//! Attention over caches of every format, in one step and row by row.

use trine_backend::oracle::Oracle;
use trine_backend::{Activation, Backend, Heads, KvFormat, KvShape, Row, activation};
use trine_kernels::args::{self, Address};
use trine_kernels::{Kernel, Launch, Quantize, segment};

use crate::device::{Codes, Random, bits, close, download, read, rows, run, upload, zeros};

const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Int8];

/// Which kernel.
#[derive(Clone, Copy, PartialEq)]
enum Path {
    /// Of one row, which it rotates and stores.
    Rotating,
    Rows,
    ManyRows,
}

struct Cache {
    heads: Heads,
    format: KvFormat,
    sequences: usize,
    context: usize,
    keys: Address,
    values: Address,
    key_scales: Address,
    value_scales: Address,
    table: Address,
}

impl Cache {
    fn new(heads: Heads, format: KvFormat, sequences: usize, context: usize, table: &[f32]) -> Cache {
        let vectors = sequences * heads.kv * context;
        let bytes = match format {
            KvFormat::F32 => 4,
            KvFormat::F16 => 2,
            KvFormat::Int8 => 1,
        } * heads.dim.next_multiple_of(8);
        let [keys, values] = [(); 2].map(|()| zeros(vectors * bytes));
        let [key_scales, value_scales] = [(); 2].map(|()| zeros(4 * vectors));
        Cache { heads, format, sequences, context, keys, values, key_scales, value_scales, table: upload(table) }
    }

    fn store(&self, step: Address, qkv: Address, count: usize) {
        let Heads { query, kv, dim } = self.heads;
        let args = args::RopeStoreKv {
            step,
            qkv,
            table: self.table,
            keys: self.keys,
            values: self.values,
            key_scales: self.key_scales,
            value_scales: self.value_scales,
            dim: dim as u32,
            query_heads: query as u32,
            kv_heads: kv as u32,
            context: self.context as u32,
        };
        run(&Kernel::rope_store_kv(true, true, self.format, false), Launch::heads(query + 2 * kv, count), &args);
    }

    /// Attention's floats, and its codes where they are asked for.
    fn attend(
        &self,
        step: Address,
        qkv: Address,
        count: usize,
        longest: usize,
        path: Path,
        quantize: bool,
    ) -> (Vec<f32>, Codes) {
        let Heads { query, kv, dim } = self.heads;
        let chunks = longest.div_ceil(64).next_power_of_two();
        let batches = heads_batches(self.heads);
        let (out, codes) = (zeros(4 * count * query * dim), Codes::new(count, query * dim));
        let args = args::Attend {
            step,
            qkv,
            table: self.table,
            keys: self.keys,
            values: self.values,
            key_scales: self.key_scales,
            value_scales: self.value_scales,
            partials: upload(&vec![f32::NAN; count * query * chunks * (dim + 2)]),
            counters: zeros(4 * count * kv * batches),
            out,
            codes: codes.codes,
            spans: codes.spans,
            dim: dim as u32,
            query_heads: query as u32,
            kv_heads: kv as u32,
            context: self.context as u32,
            chunks: chunks as u32,
            per: segment(query * dim) as u32,
            scale: (1.0 / (dim as f64).sqrt()) as f32,
            rows: count as u32,
        };
        let quantize = if quantize { Quantize::Block } else { Quantize::No };
        let made_for = (dim == 64 || dim == 128).then_some((dim as u32, self.heads.group() as u32));
        let group = self.heads.group();
        let (kernel, launch) = match path {
            Path::ManyRows => (
                Kernel::attend_rows(self.format, quantize, made_for, false),
                Launch::attend_rows(chunks, kv, group, count),
            ),
            _ => (
                Kernel::attend(path == Path::Rotating, self.format, quantize, made_for, false),
                Launch::attend(chunks, kv, group, count),
            ),
        };
        run(&kernel, launch, &args);
        (download(out, count * query * dim), codes)
    }
}

fn heads_batches(heads: Heads) -> usize {
    heads.group().div_ceil(8)
}

/// Angles for every position.
fn table(positions: usize, dim: usize) -> Vec<f32> {
    let angle = |position: usize, i: usize| position as f32 * 100f32.powf(-2.0 * i as f32 / dim as f32);
    let row =
        |p: usize| (0..dim / 2).map(move |i| angle(p, i).cos()).chain((0..dim / 2).map(move |i| angle(p, i).sin()));
    (0..positions).flat_map(row).collect()
}

/// Two sequences: the second one's rows are spread among the first one's.
fn step_rows(first: usize, second: usize) -> Vec<(u32, u32, u32)> {
    let mut rows = Vec::new();
    for position in 0..first.max(second) as u32 {
        if (position as usize) < first {
            rows.push((0, 0, position));
        }
        if (position as usize) < second {
            rows.push((0, 1, position));
        }
    }
    rows
}

#[test]
fn attention_is_near_the_oracle_and_the_same_in_one_step_and_row_by_row() {
    let mut random = Random(40);
    let shapes = [
        (Heads { query: 4, kv: 2, dim: 64 }, 140, 70, &FORMATS[..]),
        (Heads { query: 7, kv: 1, dim: 128 }, 66, 3, &FORMATS[1..2]),
        (Heads { query: 9, kv: 1, dim: 80 }, 65, 2, &FORMATS[2..]),
        (Heads { query: 1, kv: 1, dim: 2 }, 70, 1, &FORMATS[..1]),
        (Heads { query: 2, kv: 2, dim: 256 }, 66, 1, &FORMATS[1..2]),
    ];
    for (heads, first, second, formats) in shapes {
        for &format in formats {
            let (width, context, columns) = (heads.fused_width(), first + 2, heads.query_width());
            let angles = table(context, heads.dim);
            let tokens = step_rows(first, second);
            let count = tokens.len();
            let x = random.floats(count * width, 1.5);
            let what = format!("{heads:?} {format:?}");

            let cache = Cache::new(heads, format, 2, context, &angles);
            let (step, qkv) = (upload(&rows(&tokens)), upload(&x));
            cache.store(step, qkv, count);
            let (many, codes) = cache.attend(step, qkv, count, first, Path::ManyRows, heads.dim % 32 == 0);
            let (few, few_codes) = cache.attend(step, qkv, count, first, Path::Rows, heads.dim % 32 == 0);
            assert_eq!(bits(&few), bits(&many), "{what}");
            close(&many, &expected(&cache, &tokens, &x, &angles), |_| 2e-5, &what);
            if heads.dim % 32 == 0 {
                for (row, x) in many.chunks(columns).enumerate() {
                    let (mut want, mut scales) = (vec![0; columns], vec![0.0; columns / 32]);
                    activation::quantize(x, Activation::Block, &mut want, &mut scales);
                    assert_eq!(codes.row(row), (want, scales), "{what}: row {row}");
                    assert_eq!(codes.row(row), few_codes.row(row), "{what}: row {row}");
                }
            }

            let alone = Cache::new(heads, format, 2, context, &angles);
            for (at, &token) in tokens.iter().enumerate() {
                let (step, qkv) = (upload(&rows(&[token])), upload(&x[at * width..][..width]));
                let (one, _) = alone.attend(step, qkv, 1, token.2 as usize + 1, Path::Rotating, false);
                assert_eq!(bits(&one), bits(&many[at * columns..][..columns]), "{what}: {token:?}");
            }
            let bytes = |cache: &Cache| -> Vec<u8> {
                let count = cache.sequences * heads.kv * context * heads.dim.next_multiple_of(8);
                [download::<u8>(cache.keys, count), download::<u8>(cache.values, count)].concat()
            };
            assert_eq!(bytes(&cache), bytes(&alone), "{what}: what is in the cache");
        }
    }
}

fn expected(cache: &Cache, tokens: &[(u32, u32, u32)], x: &[f32], angles: &[f32]) -> Vec<f32> {
    let heads = cache.heads;
    let mut oracle = Oracle::open(&()).unwrap();
    let shape = KvShape {
        layers: 1,
        sequences: cache.sequences,
        context: cache.context,
        kv_heads: heads.kv,
        head_dim: heads.dim,
    };
    let mut kv = oracle.kv(shape, cache.format).unwrap();
    let mut qkv = oracle.upload(heads.fused_width(), x).unwrap();
    let table = oracle.upload(heads.dim, angles).unwrap();
    let mut out = oracle.alloc(tokens.len(), heads.query_width()).unwrap();
    let row = |&(token, sequence, position)| Row { token, sequence, position, output: true };
    let step: Vec<Row> = tokens.iter().map(row).collect();
    oracle
        .step(&step, |o| {
            o.rope_store_kv(&mut kv, 0, &mut qkv, heads, &table);
            o.attend(&mut out, &qkv, &kv, 0, heads);
        })
        .unwrap();
    read(&mut oracle, &out, tokens.len() * heads.query_width())
}
