//! The device that a user names.

use crate::{Error, Result};

/// The number of the device that `wanted` names: its number in `names`, or a part of its name in any case. `kind` is what
/// such devices are called.
///
/// Errors with a line that lists what there is.
///
/// ```
/// let names = ["NVIDIA H200".to_owned(), "Orin".to_owned()];
/// assert_eq!(trine_backend::find_device("CUDA device", &names, "orin"), Ok(1));
/// ```
pub fn find_device(kind: &str, names: &[String], wanted: &str) -> Result<usize> {
    let found = match wanted.parse::<usize>() {
        Ok(number) => Some(number).filter(|&number| number < names.len()),
        Err(_) => names.iter().position(|name| name.to_lowercase().contains(&wanted.to_lowercase())),
    };
    found.ok_or_else(|| {
        let list: Vec<String> = names.iter().enumerate().map(|(at, name)| format!("{at} ({name})")).collect();
        Error::Invalid(format!("there is no {kind} '{wanted}': there is {}", list.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_number_and_by_name() {
        let names = ["NVIDIA H200".to_owned(), "llvmpipe (LLVM 15)".to_owned()];
        let find = |wanted| find_device("GPU", &names, wanted);
        assert_eq!(find("1"), Ok(1));
        assert_eq!(find("nvidia"), Ok(0));
        assert_eq!(find("LLVMpipe"), Ok(1));
        assert!(find("arc").is_err());
        let line = find("2").unwrap_err().to_string();
        assert_eq!(line, "there is no GPU '2': there is 0 (NVIDIA H200), 1 (llvmpipe (LLVM 15))");
    }
}
