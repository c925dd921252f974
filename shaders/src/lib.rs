//! Trine's WGSL shaders: one file for each op, named as the op, in `wgsl/`.
//!
//! A line `//#include NAME` stands for the file `NAME.wgsl`; a name in capitals (`FORMAT`, `TOKENS`, `REDUCE`, `WIDTH`)
//! is a choice that a [`Shader`] makes. What a pipeline chooses when it is built, such as the columns that
//! share a scale, is an `override` constant; shapes are in the uniform `params`; tokens and positions are in
//! the storage buffer `batch`.
#![forbid(unsafe_code)]

use std::fmt;

/// Number formats of quantised matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// -1, 0, 1 in 2 bits.
    Ternary,
    /// 4 bits.
    Int4,
    /// 8 bits.
    Int8,
}

/// Tokens that a product takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tokens {
    /// Decoding.
    One,
    /// A few sequences, or a short prompt.
    Four,
}

/// How a workgroup forms sums and maxima.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Through subgroups, where the device has them.
    Subgroup,
    /// Through workgroup memory, which every device has.
    Workgroup,
}

/// How a shader reads a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Four columns at a time: the row has a whole number of such quads.
    Four,
    /// One column at a time.
    One,
}

/// A shader with its choices made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shader {
    /// `x += y`.
    Add,
    /// `x += bias`.
    AddBias,
    /// Attention over chunks of positions.
    Attend(Width),
    /// The join of chunks that different workgroups worked on.
    AttendCombine,
    /// A copy of a buffer, to measure by.
    Copy,
    /// Rows of a quantised table.
    Embed(Codes),
    /// Rows of a table of floats.
    EmbedDense,
    /// `gate(g) · u`.
    Gated,
    /// RMSNorm of each head.
    HeadNorm(Reduce),
    /// Quantised products for few tokens.
    Linear(Codes, Tokens),
    /// Products with floats.
    LinearDense,
    /// A quantised product of one token and the gate of its two halves.
    LinearGated(Codes),
    /// Quantised products for many tokens.
    LinearTiled(Codes),
    /// INT8 activations, a scale for each 32 columns.
    QuantizeBlock,
    /// INT8 activations, a scale for each token.
    QuantizeToken(Reduce),
    /// RMSNorm, with an addition before and quantisation after it where they are asked for.
    RmsNorm(Reduce, Width),
    /// Rotary position embedding, the store of keys and values, or both.
    RopeStoreKv,
    /// The rows whose logits are wanted.
    SelectOutputs,
}

/// How a shader uses one of its buffers; they are all in bind group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// `var<uniform>`.
    Uniform,
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

macro_rules! files {
    ($($name:literal)+) => {
        /// The text of a file in `wgsl/`, without its ending.
        fn file(name: &str) -> &'static str {
            match name {
                $($name => include_str!(concat!("../wgsl/", $name, ".wgsl")),)+
                _ => panic!("there is no shader file {name}.wgsl"),
            }
        }
    };
}

files! {
    "activations" "add" "add_bias" "attend" "attend_columns" "attend_combine" "attend_quads" "attend_rope" "attend_scores"
    "attend_values" "batch" "cache" "cache_store" "codes" "copy" "dense" "divide" "embed" "embed_dense" "four_tokens" "gate"
    "gated" "head_norm" "int4" "int8" "linear" "linear_dense" "linear_gated" "linear_tiled" "lone_columns" "one_token"
    "products" "quads" "quantize" "quantize_block" "quantize_sheet" "quantize_token" "reduce_subgroup" "reduce_workgroup" "rms_norm"
    "rope_store_kv" "rotate" "select_outputs" "softmax" "ternary" "weights"
}

impl Codes {
    fn file(self) -> &'static str {
        match self {
            Codes::Ternary => "ternary",
            Codes::Int4 => "int4",
            Codes::Int8 => "int8",
        }
    }
}

impl Shader {
    /// Every shader with every choice.
    pub fn all() -> Vec<Shader> {
        use Shader::*;
        let mut all =
            vec![Add, AddBias, AttendCombine, Copy, EmbedDense, Gated, LinearDense, QuantizeBlock, RopeStoreKv];
        all.extend([Attend(Width::Four), Attend(Width::One), SelectOutputs]);
        for reduce in [Reduce::Subgroup, Reduce::Workgroup] {
            all.extend([HeadNorm(reduce), QuantizeToken(reduce)]);
            all.extend([RmsNorm(reduce, Width::Four), RmsNorm(reduce, Width::One)]);
        }
        for codes in [Codes::Ternary, Codes::Int4, Codes::Int8] {
            all.extend([Embed(codes), Linear(codes, Tokens::One), Linear(codes, Tokens::Four)]);
            all.extend([LinearGated(codes), LinearTiled(codes)]);
        }
        all
    }

    /// The file's name without its ending, which is the op's name.
    pub fn name(self) -> &'static str {
        match self {
            Shader::Add => "add",
            Shader::AddBias => "add_bias",
            Shader::Attend(_) => "attend",
            Shader::AttendCombine => "attend_combine",
            Shader::Copy => "copy",
            Shader::Embed(_) => "embed",
            Shader::EmbedDense => "embed_dense",
            Shader::Gated => "gated",
            Shader::HeadNorm(_) => "head_norm",
            Shader::Linear(..) => "linear",
            Shader::LinearDense => "linear_dense",
            Shader::LinearGated(_) => "linear_gated",
            Shader::LinearTiled(_) => "linear_tiled",
            Shader::QuantizeBlock => "quantize_block",
            Shader::QuantizeToken(_) => "quantize_token",
            Shader::RmsNorm(..) => "rms_norm",
            Shader::RopeStoreKv => "rope_store_kv",
            Shader::SelectOutputs => "select_outputs",
        }
    }

    /// The file that a name in capitals stands for.
    fn choice(self, name: &str) -> &'static str {
        match (name, self) {
            ("FORMAT", Shader::Embed(codes) | Shader::Linear(codes, _)) => codes.file(),
            ("FORMAT", Shader::LinearGated(codes) | Shader::LinearTiled(codes)) => codes.file(),
            ("TOKENS", Shader::Linear(_, Tokens::One)) => "one_token",
            ("TOKENS", Shader::Linear(_, Tokens::Four)) => "four_tokens",
            ("REDUCE", Shader::HeadNorm(reduce) | Shader::QuantizeToken(reduce) | Shader::RmsNorm(reduce, _)) => {
                match reduce {
                    Reduce::Subgroup => "reduce_subgroup",
                    Reduce::Workgroup => "reduce_workgroup",
                }
            }
            ("WIDTH", Shader::RmsNorm(_, Width::Four)) => "quads",
            ("WIDTH", Shader::RmsNorm(_, Width::One)) => "lone_columns",
            ("WIDTH", Shader::Attend(Width::Four)) => "attend_quads",
            ("WIDTH", Shader::Attend(Width::One)) => "attend_columns",
            _ => panic!("{self} has no choice {name}"),
        }
    }

    /// The whole text. Directives (`enable`, `requires`) come first, as WGSL asks.
    pub fn source(self) -> String {
        let mut body = String::new();
        self.expand(file(self.name()), &mut body);
        let (directives, rest): (Vec<&str>, Vec<&str>) =
            body.lines().partition(|line| line.starts_with("enable ") || line.starts_with("requires "));
        [directives.join("\n"), rest.join("\n")].join("\n") + "\n"
    }

    fn expand(self, text: &str, out: &mut String) {
        for line in text.lines() {
            match line.strip_prefix("//#include ") {
                Some(name) if name.chars().all(|c| c.is_ascii_uppercase()) => self.expand(file(self.choice(name)), out),
                Some(name) => self.expand(file(name), out),
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }

    /// The buffers of bind group 0 in the order of their numbers, which have no gaps.
    ///
    /// # Panics
    /// If the shader's declarations are not written as those here are: the crate's tests see to it.
    pub fn bindings(self) -> Vec<Binding> {
        let mut found: Vec<(usize, Binding)> = self.source().lines().filter_map(declaration).collect();
        found.sort_by_key(|(number, _)| *number);
        assert!(found.iter().enumerate().all(|(at, (number, _))| at == *number), "{self} skips a binding: {found:?}");
        found.into_iter().map(|(_, binding)| binding).collect()
    }
}

/// The number and use of a buffer that a line declares.
fn declaration(line: &str) -> Option<(usize, Binding)> {
    let (number, rest) = line.strip_prefix("@group(0) @binding(")?.split_once(") var<")?;
    let binding = match rest.split_once('>')?.0 {
        "uniform" => Binding::Uniform,
        "storage, read" => Binding::Read,
        "storage, read_write" => Binding::ReadWrite,
        other => panic!("a buffer is <{other}>"),
    };
    Some((number.parse().ok()?, binding))
}

impl fmt::Display for Shader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.wgsl ({self:?})", self.name())
    }
}

#[cfg(test)]
mod tests;
