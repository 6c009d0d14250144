//! Types that have a text: enums whose variants have names, and values that are stored as they are written.

/// Defines enums whose variants have stable names, with `ALL`, names and numbers.
#[macro_export]
macro_rules! named {
    ($($(#[$of:meta])* pub enum $Enum:ident { $($(#[$doc:meta])* $Variant:ident $name:literal,)+ })+) => {$(
        $(#[$of])*
        pub enum $Enum { $($(#[$doc])* $Variant),+ }

        impl $Enum {
            /// Every variant, in the order of declaration.
            pub const ALL: [$Enum; [$($name),+].len()] = [$($Enum::$Variant),+];

            /// Returns the stable name, as in columns, JSON and settings.
            pub fn name(self) -> &'static str {
                match self { $($Enum::$Variant => $name),+ }
            }

            /// Returns the variant with this name; `None` if there is none.
            pub fn parse(text: &str) -> Option<$Enum> {
                Self::ALL.into_iter().find(|one| one.name() == text)
            }

            /// Returns the number by which it is stored: variants keep their order, and new ones come last.
            pub fn code(self) -> i64 {
                self as i64
            }

            /// Returns the variant with this number; `None` if there is none.
            pub fn from_code(code: i64) -> Option<$Enum> {
                Self::ALL.get(usize::try_from(code).ok()?).copied()
            }
        }
    )+};
}

/// Stores types as their text: what `Display` writes, and `FromStr` checks and reads.
#[macro_export]
macro_rules! stored_as_text {
    ($($Type:ty),+) => {$(
        impl serde::Serialize for $Type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text: String = serde::Deserialize::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
