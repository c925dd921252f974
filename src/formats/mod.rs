//! Files that hold weights: Hugging Face safetensors directories and the quantised layouts inside them, and GGUF files; and weights
//! that are random and in no file ([`synthetic`]).
//!
//! Nothing here knows a model: [`Checkpoint`] gives named, typed, shaped bytes; [`bitnet`] reads the ternary layouts,
//! [`part`] gives the rows of a matrix to the loader whatever they are stored as, [`gguf`] reads GGUF.
//! Nothing that a file says is trusted: every size, offset and shape is checked once, on opening, with checked
//! arithmetic, and what is wrong comes out as one line with the file, the tensor and the reason.

pub mod bitnet;
pub mod checkpoint;
pub mod gguf;
pub mod mapped;
pub mod part;
pub mod safetensors;
pub mod synthetic;
pub mod tensor;
pub mod trine;
pub mod words;

mod kind;
mod unique;

#[cfg(test)]
pub(crate) mod test_files;

pub use bitnet::{OnlineTernary, PackedTernary};
pub use checkpoint::Checkpoint;
pub use mapped::Mapped;
pub use part::{Part, PartInfo, Quantization};
pub use tensor::{Dtype, Tensor, check_finite};

/// A name out of a file, fit for an error line: quoted, control characters escaped, cut if absurdly long.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 120;
    match name.char_indices().nth(LONGEST) {
        None => format!("\"{}\"", name.escape_debug()),
        Some((end, _)) => format!("\"{}…\"", name[..end].escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_in_errors_stay_on_one_short_line() {
        assert_eq!(quoted("a.weight"), "\"a.weight\"");
        assert_eq!(quoted("a\nb\u{1b}[0m\""), r#""a\nb\u{1b}[0m\"""#);
        let long = quoted(&"é".repeat(1_000_000));
        assert_eq!(long, format!("\"{}…\"", "é".repeat(120)));
    }
}
