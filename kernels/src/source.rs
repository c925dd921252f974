//! The texts of kernels: files of `cuda/` with what they include put in its place, each once.

macro_rules! files {
    ($($name:literal)+) => {
        /// The text of a file in `cuda/`.
        fn file(name: &str) -> &'static str {
            match name {
                $($name => include_str!(concat!("../cuda/", $name)),)+
                _ => panic!("there is no kernel file {name}"),
            }
        }

        /// Every file in `cuda/` that is a kernel.
        pub(crate) fn kernels() -> Vec<&'static str> {
            [$($name),+].into_iter().filter_map(|name| name.strip_suffix(".cu")).collect()
        }
    };
}

files! {
    "activation.cuh" "add.cu" "args.cuh" "argmax.cu" "attend.cu" "attend_rows.cu" "attention.cuh" "cache.cuh" "copy.cu" "dense.cu" "device.cuh" "embed.cu" "gate.cuh"
    "gated.cu" "gemm.cu" "gemv.cu" "head_norm.cu" "norm.cuh" "pieces.cuh" "quantize.cu" "reduce.cuh" "rms_norm.cu" "rope_store_kv.cu"
    "rotate.cuh" "select_rows.cu" "units.cuh" "weights.cuh"
}

/// The whole text of a kernel.
///
/// # Panics
/// If there is no such kernel.
pub(crate) fn whole(kernel: &str) -> String {
    let mut out = String::new();
    include(&format!("{kernel}.cu"), &mut Vec::new(), &mut out);
    out
}

fn include(name: &str, seen: &mut Vec<String>, out: &mut String) {
    if seen.iter().any(|other| other == name) {
        return;
    }
    seen.push(name.to_owned());
    for line in file(name).lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            // The emulation's header is the host compiler's to find.
            Some(other) if other.ends_with(".cuh") => include(other, seen, out),
            _ if line == "#pragma once" => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_known() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(!file(&name).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_kernel_is_one_text_with_each_header_once() {
        for kernel in kernels() {
            let text = whole(kernel);
            assert!(!text.contains(".cuh\""), "{kernel}");
            assert_eq!(text.matches("struct StepRow {").count(), 1, "{kernel}");
            assert_eq!(text.matches(&format!("KERNEL({kernel}, ")).count(), 1, "{kernel}");
        }
    }
}
