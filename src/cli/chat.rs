//! The chat on a terminal: a conversation that keeps to the context.

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use trine_backend::Backend;

use super::args::Verbosity;
use super::output::{note, print};
use super::run::summary;
use super::{Exit, interrupt};
use crate::generation::{TextOptions, generate};
use crate::session::{End, Session};
use crate::tokens::{ChatTemplate, Message, Special, Tokenizer};
use crate::{Error, Result};

const HELP: &str = "/help   this\n/reset  forget the conversation\n/exit   leave; also Ctrl-D, or Ctrl-C twice\n\
                    Ctrl-C  while an answer is written: stop it";

/// Tokens of the context that are kept free for an answer, at most a quarter of it.
const ANSWER_ROOM: usize = 256;

/// A conversation.
pub(super) struct Chat<'a, B: Backend> {
    session: Session<B>,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    options: TextOptions,
    /// The system message, if there is one, then user and assistant by turns.
    messages: Vec<Message>,
    verbosity: Verbosity,
}

impl<'a, B: Backend> Chat<'a, B> {
    /// A conversation that begins with the message `system`.
    pub(super) fn new(
        session: Session<B>,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        options: TextOptions,
        system: Option<&str>,
        verbosity: Verbosity,
    ) -> Self {
        let messages = system.map(|text| Message::new("system", text)).into_iter().collect();
        Chat { session, tokenizer, template, options, messages, verbosity }
    }

    /// Reads lines and answers them until the user leaves.
    pub(super) fn run(mut self) -> Result<Exit> {
        let mut editor = DefaultEditor::new().map_err(terminal)?;
        if !self.verbosity.quiet {
            note("/help shows what can be done here.");
        }
        let mut leaving = false;
        loop {
            interrupt::clear();
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Eof) => return Ok(Exit::Success),
                Err(ReadlineError::Interrupted) if leaving => return Ok(Exit::Success),
                Err(ReadlineError::Interrupted) => {
                    leaving = true;
                    note("Ctrl-C again leaves.");
                    continue;
                }
                Err(error) => return Err(terminal(error)),
            };
            leaving = false;
            match line.trim() {
                "" => {}
                "/exit" | "/quit" | "/bye" => return Ok(Exit::Success),
                "/help" | "/?" => note(HELP),
                "/reset" | "/clear" => forget(&mut self.messages),
                command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                    note(&format!("{command} is no command. {HELP}"));
                }
                text => {
                    // History is a convenience: a line that it does not take is answered all the same.
                    let _ = editor.add_history_entry(&line);
                    self.turn(text)?;
                }
            }
        }
    }

    /// One question and its answer. What is wrong with the question alone is said, and the question forgotten.
    fn turn(&mut self, text: &str) -> Result<()> {
        self.messages.push(Message::new("user", text));
        match self.answer() {
            Ok(Some(answer)) => self.messages.push(Message::new("assistant", answer)),
            Ok(None) => drop(self.messages.pop()),
            Err(error @ (Error::Request(_) | Error::File { .. })) => {
                note(&format!("error: {error}"));
                self.messages.pop();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Streams the answer to the conversation; `None` where it was stopped before it began.
    fn answer(&mut self) -> Result<Option<String>> {
        let ids = self.fit()?;
        let mut answer = String::new();
        let Chat { session, tokenizer, options, .. } = self;
        let outcome = generate(session, tokenizer, &ids, options, interrupt::requested, |text| {
            answer.push_str(text);
            print(text)
        })?;
        // The next answer is another draw.
        options.sampling.seed = options.sampling.seed.wrapping_add(1);
        print("\n")?;
        if outcome.end == End::ContextFull {
            note("[the context is full: the answer ends here, and older turns will make room for the next]");
        }
        if self.verbosity.verbose {
            note(&summary(&outcome));
        }
        Ok(if outcome.end == End::Interrupted && answer.is_empty() { None } else { Some(answer) })
    }

    /// The conversation's ids, less the oldest turns where there is no room for them.
    fn fit(&mut self) -> Result<Vec<u32>> {
        let context = self.session.context();
        let room = context - ANSWER_ROOM.min(context / 4);
        let mut dropped = 0;
        loop {
            let text = self.template.render(&self.messages, true, None)?;
            let ids = self.tokenizer.encode(&text, Special::TEMPLATE)?;
            if ids.len() <= room || !drop_oldest_turn(&mut self.messages) {
                if dropped > 0 {
                    note(&format!(
                        "[the context of {context} tokens is full; turns forgotten, oldest first: {dropped}]"
                    ));
                }
                return Ok(ids);
            }
            dropped += 1;
        }
    }
}

fn terminal(error: ReadlineError) -> Error {
    Error::Request(format!("the terminal can't be read: {error}"))
}

/// Messages at the front that stay: the system's.
fn kept(messages: &[Message]) -> usize {
    messages.iter().take_while(|message| message.role == "system").count()
}

/// Forgets everything but the system message.
fn forget(messages: &mut Vec<Message>) {
    messages.truncate(kept(messages));
}

/// Forgets the oldest question and its answer; the last question, which has no answer yet, stays.
fn drop_oldest_turn(messages: &mut Vec<Message>) -> bool {
    let first = kept(messages);
    let droppable = messages.len() >= first + 3;
    if droppable {
        messages.drain(first..first + 2);
    }
    droppable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(roles: &[&str]) -> Vec<Message> {
        roles.iter().enumerate().map(|(i, &role)| Message::new(role, i.to_string())).collect()
    }

    fn contents(messages: &[Message]) -> String {
        messages.iter().map(|message| message.content.as_str()).collect()
    }

    #[test]
    fn the_oldest_turns_go_and_the_system_message_stays() {
        let mut messages = conversation(&["system", "user", "assistant", "user", "assistant", "user"]);
        assert!(drop_oldest_turn(&mut messages));
        assert_eq!(contents(&messages), "0345");
        assert!(drop_oldest_turn(&mut messages));
        assert_eq!(contents(&messages), "05");
        assert!(!drop_oldest_turn(&mut messages));
        assert_eq!(contents(&messages), "05");
        let mut messages = conversation(&["user", "assistant", "user"]);
        assert!(drop_oldest_turn(&mut messages) && !drop_oldest_turn(&mut messages));
        assert_eq!(contents(&messages), "2");
    }

    #[test]
    fn forgetting_keeps_the_system_message() {
        let mut messages = conversation(&["system", "user", "assistant"]);
        forget(&mut messages);
        assert_eq!(contents(&messages), "0");
        let mut messages = conversation(&["user", "assistant"]);
        forget(&mut messages);
        assert!(messages.is_empty());
    }
}
