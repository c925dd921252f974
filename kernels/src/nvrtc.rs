//! NVRTC, CUDA's run-time compiler: found and loaded when it is asked for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::{Library, Symbol};
use trine_backend::{Error, Result};

use crate::cache::Cache;
use crate::kernel::Kernel;

/// Where NVRTC is, if it is nowhere that it is looked for.
const VARIABLE: &str = "TRINE_NVRTC";
/// As the system's loader knows it.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// The first version that compiles the kernels: CUDA 12.0.
const OLDEST: (c_int, c_int) = (12, 0);

type Program = *mut c_void;
type Status = c_int;

/// NVRTC and the cache of what it made.
#[derive(Debug)]
pub struct Compiler {
    library: Library,
    version: (c_int, c_int),
    cache: Cache,
}

impl Compiler {
    /// Loads NVRTC: `$TRINE_NVRTC`, the system's, CUDA's own folder, or a Python package's (`nvidia-cuda-nvrtc-cu12`).
    ///
    /// # Errors
    /// There is none, or it is too old.
    pub fn open(cache: Cache) -> Result<Compiler> {
        let library = find()?;
        let mut compiler = Compiler { library, version: (0, 0), cache };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: nvrtcVersion writes two integers.
        let status = unsafe {
            let version: Symbol<'_, unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status> =
                compiler.symbol(b"nvrtcVersion")?;
            version(&raw mut major, &raw mut minor)
        };
        compiler.check(status, "nvrtcVersion")?;
        compiler.version = (major, minor);
        if compiler.version < OLDEST {
            return Err(Error::Unsupported(format!(
                "NVRTC {major}.{minor} is too old for the CUDA kernels: install CUDA 12.6, or set {VARIABLE} to a newer libnvrtc.so"
            )));
        }
        Ok(compiler)
    }

    /// Its name and version.
    pub fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Machine code for a device of this compute capability (87: 8.7), from the cache where it is there.
    ///
    /// # Errors
    /// The compiler refused, which for our own kernels means that it does not know the device.
    pub fn machine_code(&self, kernel: &Kernel, capability: u32) -> Result<Vec<u8>> {
        let architecture = format!("--gpu-architecture=sm_{capability}");
        // No contraction: each fused multiply-add is written as one.
        let fixed = [architecture.as_str(), "--std=c++17", "--fmad=false"];
        let version = self.name();
        let name = format!("{}.cubin", kernel.key(&[&fixed[..], &[version.as_str()]].concat()));
        if let Some(code) = self.cache.read(&name) {
            return Ok(code);
        }
        let defines = kernel.options();
        let options: Vec<&str> = fixed.into_iter().chain(defines.iter().map(String::as_str)).collect();
        let code = self.compile(kernel, &options).map_err(|why| {
            Error::Unsupported(format!("{version} can't compile the kernel {} for sm_{capability}: {why}", kernel.file))
        })?;
        self.cache.write(&name, &code);
        Ok(code)
    }

    fn compile(&self, kernel: &Kernel, options: &[&str]) -> Result<Vec<u8>> {
        let invalid = |_| Error::Invalid("a text with a zero byte".into());
        let (source, name) =
            (CString::new(kernel.source()).map_err(invalid)?, CString::new(kernel.file).map_err(invalid)?);
        let options: Vec<CString> = options
            .iter()
            .map(|&option| CString::new(option))
            .collect::<std::result::Result<_, _>>()
            .map_err(invalid)?;
        let addresses: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: the signatures are those of nvrtc.h; texts end with a zero and live until the calls return; the
        // program is destroyed once.
        unsafe {
            type Create = unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> Status;
            let create: Symbol<'_, Create> = self.symbol(b"nvrtcCreateProgram")?;
            let compile: Symbol<'_, unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status> =
                self.symbol(b"nvrtcCompileProgram")?;
            let destroy: Symbol<'_, unsafe extern "C" fn(*mut Program) -> Status> =
                self.symbol(b"nvrtcDestroyProgram")?;
            let status = create(&raw mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null());
            self.check(status, "nvrtcCreateProgram")?;
            let status = compile(program, addresses.len() as c_int, addresses.as_ptr());
            let code = match self.check(status, "nvrtcCompileProgram") {
                Ok(()) => self.bytes(program, b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN"),
                Err(error) => Err(self.first_fault(program).unwrap_or(error)),
            };
            destroy(&raw mut program);
            code
        }
    }

    /// What the compiler said first.
    ///
    /// # Safety
    /// `program` is one of this library's.
    unsafe fn first_fault(&self, program: Program) -> Option<Error> {
        // SAFETY: as this function's own.
        let log = unsafe { self.bytes(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog") }.ok()?;
        let log = String::from_utf8_lossy(&log).into_owned();
        let fault = log.lines().find(|line| line.contains("error"))?;
        Some(Error::Invalid(fault.trim().to_owned()))
    }

    /// What a pair of functions says of a program: how many bytes, and the bytes.
    ///
    /// # Safety
    /// `program` is one of this library's, and the functions are such a pair.
    unsafe fn bytes(&self, program: Program, size: &[u8], get: &[u8]) -> Result<Vec<u8>> {
        let mut count = 0usize;
        // SAFETY: as this function's own; the buffer is as long as the first function says.
        unsafe {
            let size: Symbol<'_, unsafe extern "C" fn(Program, *mut usize) -> Status> = self.symbol(size)?;
            let get: Symbol<'_, unsafe extern "C" fn(Program, *mut c_char) -> Status> = self.symbol(get)?;
            self.check(size(program, &raw mut count), "nvrtc")?;
            let mut bytes = vec![0u8; count];
            self.check(get(program, bytes.as_mut_ptr().cast()), "nvrtc")?;
            Ok(bytes)
        }
    }

    /// # Safety
    /// `T` is the function's type.
    unsafe fn symbol<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>> {
        // SAFETY: as this function's own.
        unsafe { self.library.get(name) }.map_err(|why| Error::Unsupported(format!("NVRTC is not whole: {why}")))
    }

    fn check(&self, status: Status, call: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: nvrtcGetErrorString returns a text that lives as long as the library, for every number.
        let text = unsafe {
            self.symbol::<unsafe extern "C" fn(Status) -> *const c_char>(b"nvrtcGetErrorString")
                .map(|text| CStr::from_ptr(text(status)).to_string_lossy().into_owned())
        };
        Err(Error::Device(format!("{call}: {}", text.unwrap_or_else(|_| status.to_string()))))
    }
}

fn find() -> Result<Library> {
    let own = std::env::var_os(VARIABLE).map(PathBuf::from);
    if let Some(path) = own {
        return load(&path).map_err(|why| Error::Unsupported(format!("{VARIABLE}: {why}")));
    }
    let places = NAMES.iter().map(PathBuf::from).chain(folders().into_iter().flat_map(|folder| libraries(&folder)));
    places.into_iter().find_map(|place| load(&place).ok()).ok_or_else(|| {
        Error::Unsupported(format!(
            "no NVRTC, which compiles the CUDA kernels: install CUDA 12.6 or the Python package nvidia-cuda-nvrtc-cu12, or set {VARIABLE} to its libnvrtc.so"
        ))
    })
}

fn load(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: NVRTC's initialisers do nothing but set up the library itself.
    unsafe { Library::new(path) }
}

/// Folders where it may be although the system's loader does not look there.
fn folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut folders: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(|home| home.join("lib64")).collect();
    folders.push("/usr/local/cuda/lib64".into());
    // Python packages: lib/python3.x/site-packages/nvidia/cuda_nvrtc/lib, for CUDA 13 nvidia/cu13/lib.
    let python = [variable("VIRTUAL_ENV"), variable("HOME").map(|home| home.join(".local")), Some("/usr/local".into())];
    for lib in python.into_iter().flatten().map(|base| base.join("lib")) {
        for python in entries(&lib, "python3") {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.join(packages).join("nvidia");
                folders.extend([nvidia.join("cuda_nvrtc/lib"), nvidia.join("cu13/lib")]);
            }
        }
    }
    folders
}

fn libraries(folder: &Path) -> Vec<PathBuf> {
    entries(folder, "libnvrtc.so")
}

/// What a folder has under names that begin so, in order.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs where there is an NVRTC, and says so where there is none.
    #[test]
    fn kernels_compile_and_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = match Compiler::open(Cache::at(folder.path())) {
            Ok(compiler) => compiler,
            Err(why) => {
                assert!(why.to_string().contains(VARIABLE), "{why}");
                println!("skipped: {why}");
                return;
            }
        };
        let kernel = Kernel::plain("add", false);
        let code = compiler.machine_code(&kernel, 87).unwrap();
        assert_eq!(&code[..4], b"\x7fELF");
        assert_eq!(compiler.machine_code(&kernel, 87).unwrap(), code);
        assert_ne!(compiler.machine_code(&kernel, 90).unwrap(), code);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let fault = compiler.machine_code(&kernel, 1).unwrap_err().to_string();
        assert!(fault.contains("sm_1") && !fault.contains('\n'), "{fault}");
    }
}
