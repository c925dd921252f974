//! Kernels compiled by the host's C++ compiler and run here: see `emulation/emulate.h`. For tests where there is no GPU.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, slice};

use libloading::{Library, Symbol};
use trine_backend::{Error, Result};

use crate::args::{Address, Args};
use crate::cache::unfinished;
use crate::kernel::{Kernel, Launch};

const HEADER: &str = include_str!("../emulation/emulate.h");
const MEMORY: &str = include_str!("../emulation/memory.cpp");
/// No contraction, as on the device; -O1 is compiled in a second and runs well enough.
const OPTIONS: [&str; 5] = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off"];

/// One launch at a time: kernels have their shared memory in static variables.
static TURN: Mutex<()> = Mutex::new(());

/// Memory and kernels of a device that is this program.
#[derive(Debug)]
pub struct Emulator {
    folder: PathBuf,
    compiler: String,
    memory: Library,
    loaded: Mutex<HashMap<Kernel, Function>>,
}

/// A kernel that is loaded.
#[derive(Clone, Debug)]
pub struct Function(Arc<Library>);

impl Emulator {
    /// Finds the C++ compiler (`$CXX` or `c++`).
    ///
    /// # Errors
    /// There is none, or it can't compile the emulation.
    pub fn open() -> Result<Emulator> {
        let folder = std::env::temp_dir().join(format!("trine-emulation-{}", user()));
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let header =
            format!("{}-{}", HEADER.len(), crate::kernel::digest(&[HEADER, MEMORY, &compiler, &OPTIONS.join(" ")]));
        let folder = folder.join(header);
        let made = fs::create_dir_all(&folder).and_then(|()| write(&folder.join("emulate.h"), HEADER));
        made.map_err(|why| Error::Device(format!("{}: {why}", folder.display())))?;
        let memory = build(&folder, &compiler, "memory", MEMORY, &[])?;
        Ok(Emulator { folder, compiler, memory, loaded: Mutex::default() })
    }

    /// What compiles the kernels.
    pub fn compiler(&self) -> String {
        format!("emulation by {}", self.compiler)
    }

    /// Memory whose bytes are all 255, with nothing behind it: an access past its end stops the program.
    ///
    /// # Errors
    /// The system has no more.
    pub fn alloc(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the function's type is that of memory.cpp, and it has no preconditions.
        let at = unsafe {
            let alloc: Symbol<'_, unsafe extern "C" fn(usize) -> *mut c_void> =
                self.memory_symbol(b"emulated_alloc")?;
            alloc(bytes)
        };
        if at.is_null() {
            Err(Error::OutOfMemory(format!("no {bytes} bytes for the emulation")))
        } else {
            Ok(at as Address)
        }
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It came from [`Emulator::alloc`] with this size, and nothing uses it any more.
    pub unsafe fn free(&self, at: Address, bytes: usize) {
        // SAFETY: as this function's own.
        unsafe {
            if let Ok(free) = self.memory_symbol::<unsafe extern "C" fn(*mut c_void, usize)>(b"emulated_free") {
                free(at as *mut c_void, bytes);
            }
        }
    }

    /// # Safety
    /// `T` is the function's type.
    unsafe fn memory_symbol<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>> {
        // SAFETY: as this function's own.
        unsafe { self.memory.get(name) }.map_err(|why| Error::Device(format!("the emulation is not whole: {why}")))
    }

    /// Compiles a kernel, or finds it compiled.
    ///
    /// # Errors
    /// The compiler refused it.
    pub fn load(&self, kernel: &Kernel) -> Result<Function> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.get(kernel) {
            return Ok(function.clone());
        }
        let mut options = kernel.options();
        options.push("-DEMULATE=1".into());
        options.push(format!("-I{}", self.folder.display()));
        let library = build(&self.folder, &self.compiler, &kernel.key(&[]), &kernel.source(), &options)?;
        let function = Function(Arc::new(library));
        loaded.insert(kernel.clone(), function.clone());
        Ok(function)
    }

    /// Runs a kernel; it has ended when this returns.
    ///
    /// # Errors
    /// The library is not whole.
    ///
    /// # Safety
    /// `args` is what the kernel takes, and every address in it is one that it may use as it does.
    pub unsafe fn launch(&self, function: &Function, launch: Launch, args: &impl Args) -> Result<()> {
        // SAFETY: as this function's own; the bytes are copied to words, so that they are aligned.
        unsafe { self.launch_words(function, launch, &words(args.bytes())) }
    }

    /// As [`Emulator::launch`], with the argument's bytes in words.
    ///
    /// # Errors
    /// The library is not whole.
    ///
    /// # Safety
    /// As of [`Emulator::launch`].
    pub unsafe fn launch_words(&self, function: &Function, launch: Launch, args: &[u64]) -> Result<()> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the function's type is that of the KERNEL macro; the rest is the caller's word.
        unsafe {
            let run: Symbol<'_, unsafe extern "C" fn(*const c_void, *const u32, u32)> = function
                .0
                .get(b"emulated_launch")
                .map_err(|why| Error::Device(format!("an emulated kernel is not whole: {why}")))?;
            run(args.as_ptr().cast(), launch.grid.as_ptr(), launch.threads);
        }
        Ok(())
    }

    /// Copies to the device.
    ///
    /// # Safety
    /// There are so many bytes from `to` on.
    pub unsafe fn write(&self, to: Address, bytes: &[u8]) {
        // SAFETY: as this function's own.
        unsafe { slice::from_raw_parts_mut(to as *mut u8, bytes.len()) }.copy_from_slice(bytes);
    }

    /// Copies from the device.
    ///
    /// # Safety
    /// There are so many bytes from `from` on.
    pub unsafe fn read(&self, from: Address, bytes: &mut [u8]) {
        // SAFETY: as this function's own.
        bytes.copy_from_slice(unsafe { slice::from_raw_parts(from as *const u8, bytes.len()) });
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))).collect()
}

/// Something that tells users of one machine apart, so that none finds the other's folder closed.
fn user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "nobody".into())
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let part = path.with_file_name(unfinished("text"));
    fs::write(&part, text)?;
    fs::rename(part, path)
}

/// Compiles a text to a library, unless that was done before, and loads it.
fn build(folder: &Path, compiler: &str, name: &str, text: &str, options: &[String]) -> Result<Library> {
    let library = folder.join(format!("{name}.so"));
    if !library.exists() {
        let (source, part) = (folder.join(format!("{}.cpp", unfinished(name))), folder.join(unfinished(name)));
        let failed =
            |why: String| Error::Unsupported(format!("the emulation of CUDA needs a C++ compiler: {compiler}: {why}"));
        fs::write(&source, text).map_err(|why| failed(why.to_string()))?;
        let output = Command::new(compiler).args(OPTIONS).args(options).arg(&source).arg("-o").arg(&part).output();
        let output = output.map_err(|why| failed(why.to_string()))?;
        let _ = fs::remove_file(&source);
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        fs::rename(&part, &library).map_err(|why| failed(why.to_string()))?;
    }
    // SAFETY: the library is the one that was compiled from our own text; its initialisers do nothing but set up its
    // own variables.
    unsafe { Library::new(&library) }.map_err(|why| Error::Device(format!("{}: {why}", library.display())))
}
